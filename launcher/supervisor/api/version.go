package api

import "fmt"

// ProtocolVersion is the version of the seam: of Config, of Status and of the routes. Two programs work together if
// their versions differ by at most one; see Speaks. So a new version keeps the fields and routes of the one before it.
// A field or route is removed only two versions after its last use.
//
// Both sides ignore JSON fields that they do not know, and a new field needs no new version. The exception is a field
// of Config without which a supervisor would run the kernel in a wrong way; see Config.Needs.
const (
	ProtocolVersion       = 1
	OldestProtocolVersion = max(1, ProtocolVersion-1)
	NewestProtocolVersion = ProtocolVersion + 1
)

// configNeeds is the oldest ProtocolVersion whose supervisors run a kernel as this version's Config asks. It becomes
// ProtocolVersion together with a field that must not be ignored.
const configNeeds = 1

// Speaks reports whether this program works together with one of another protocol version. No other function decides
// that.
func Speaks(version int) bool {
	return OldestProtocolVersion <= version && version <= NewestProtocolVersion
}

// VersionError says that this program does not work together with a supervisor. Its kernel may be in use, so a launcher
// reports it and leaves the supervisor running.
type VersionError struct {
	Version int    // the supervisor's ProtocolVersion
	Build   string // version of the supervisor's program
}

// Error names both sides' versions, and says what helps. It is a sentence for the kernel's owner.
func (e *VersionError) Error() string {
	helps := "a restart of the kernel helps"
	if e.Version > ProtocolVersion {
		helps = "an upgrade of the gateway or a restart of the kernel helps"
	}
	return fmt.Sprintf("its supervisor (%s) speaks protocol version %d, and this gateway %d to %d; %s",
		PlainText(e.Build, maxPlain), e.Version, OldestProtocolVersion, NewestProtocolVersion, helps)
}

// SetVersion writes into a configuration which launcher writes it, and which supervisors may run it.
func (c *Config) SetVersion() {
	c.Protocol, c.Needs = ProtocolVersion, 0
	if configNeeds != ProtocolVersion {
		c.Needs = configNeeds
	}
}

// checkVersion returns an error if this supervisor cannot run the configuration as its launcher means it.
func (c *Config) checkVersion() error {
	needs := c.Protocol
	if c.Needs != 0 {
		needs = c.Needs
	}
	switch {
	case !Speaks(c.Protocol):
		return fmt.Errorf("protocol is %d, this supervisor speaks %d to %d", c.Protocol, OldestProtocolVersion,
			NewestProtocolVersion)
	case needs > ProtocolVersion:
		return fmt.Errorf("it needs a supervisor of protocol version %d, this one has %d", needs, ProtocolVersion)
	}
	return nil
}
