package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestSpeaks(t *testing.T) {
	for version := -1; version < ProtocolVersion+4; version++ {
		want := version >= 1 && version >= ProtocolVersion-1 && version <= ProtocolVersion+1
		if got := Speaks(version); got != want {
			t.Errorf("version %d: %v", version, got)
		}
	}
}

func TestVersionError_SaysWhatHelps(t *testing.T) {
	for version, want := range map[int]string{
		NewestProtocolVersion + 1: "; an upgrade of the gateway or a restart of the kernel helps",
		OldestProtocolVersion - 1: "; a restart of the kernel helps",
	} {
		err := &VersionError{Version: version, Build: "1.2\n3"}
		want = fmt.Sprintf("its supervisor (1.23) speaks protocol version %d, and this gateway %d to %d%s", version,
			OldestProtocolVersion, NewestProtocolVersion, want)
		if got := err.Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestConfig_Versions: a supervisor runs a configuration of a neighbouring version, unless it is older than the one
// that the configuration needs.
func TestConfig_Versions(t *testing.T) {
	var ours Config
	ours.SetVersion()
	if ours.Protocol != ProtocolVersion || ours.Needs > ProtocolVersion || ours.checkVersion() != nil {
		t.Errorf("our own configuration has protocol %d and needs %d", ours.Protocol, ours.Needs)
	}
	const next, far = ProtocolVersion + 1, ProtocolVersion + 2
	needs := fmt.Sprintf("it needs a supervisor of protocol version %d, this one has %d", next, ProtocolVersion)
	speaks := fmt.Sprintf("this supervisor speaks %d to %d", OldestProtocolVersion, next)
	for _, tc := range []struct {
		protocol, needs int
		err             string
	}{
		{ProtocolVersion, 0, ""},
		{next, ProtocolVersion, ""},
		{next, 0, needs},
		{next, next, needs},
		{far, ProtocolVersion, fmt.Sprintf("protocol is %d, %s", far, speaks)},
		{0, 0, "protocol is 0, " + speaks},
	} {
		b, err := json.Marshal(Config{Protocol: tc.protocol, Needs: tc.needs, KernelID: "x", Argv: []string{"x"},
			Transport: "ipc", InterruptMode: "signal", LogLimit: 1})
		if err != nil {
			t.Fatal(err)
		}
		_, err = ParseConfig(b)
		if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("protocol %d, which needs %d: %v, want %q", tc.protocol, tc.needs, err, tc.err)
		}
	}
}
