// Package api is everything that gateways, launchers and supervisors say to each other. A launcher writes a Config and
// starts a supervisor with it. The supervisor answers Jupyter's REST and websocket routes for its one kernel, tells
// watchers its Status (StreamStatus), and leaves an Ending. A gateway adds the headers below to every request that it
// forwards. Begin with Config, Status and Model.
//
// All three sides import the package, and it imports none of them. Values are safe for concurrent reading. It starts no
// goroutine.
package api

import (
	"net/http"
	"time"
)

// Headers that a gateway adds to a forwarded request: the user's name, and the user's right to the kernel. A request
// without HeaderRight has the right to use the kernel.
const (
	HeaderUser  = "Ekg-User"
	HeaderRight = "Ekg-Right"

	RightOwn  = "own"  // everything
	RightUse  = "use"  // run code, interrupt, restart
	RightRead = "read" // read output
)

// HeaderCompress lets the supervisor compress messages to a client that offers it. An older gateway passes on the
// offers of all clients, and sends no such header. Then nothing is compressed.
const HeaderCompress = "Ekg-Compress"

// WebsocketVersion is the version of the websocket protocol that gateways and supervisors speak (RFC 6455).
const WebsocketVersion = "13"

// SpeaksWebsocket reports whether the handshake of a websocket asks for WebsocketVersion. If not, the answer is to be
// 426, and its headers name the version (RFC 6455, section 4.4).
func SpeaksWebsocket(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get("Sec-Websocket-Version") == WebsocketVersion {
		return true
	}
	w.Header().Set("Sec-Websocket-Version", WebsocketVersion)
	w.Header().Set("Upgrade", "websocket")
	w.Header().Set("Connection", "Upgrade")
	return false
}

// HeaderRequestID carries the id under which the logs of gateway and supervisor name a request: up to MaxRequestID
// hexadecimal digits in lower case.
const (
	HeaderRequestID = "X-Request-Id"
	MaxRequestID    = 64
)

// HeaderLog names the message log in an answer of GET .../log: 16 hexadecimal digits. A kernel that another supervisor
// has started again has another log, whose numbers start at 1.
const HeaderLog = "Ekg-Log"

// TimeFormat is the form of times in Jupyter's REST models, in UTC. jupyter_server's gateway client accepts only one to
// six fractional digits and a Z.
const TimeFormat = "2006-01-02T15:04:05.000000Z"

// Timestamp writes a time as TimeFormat.
func Timestamp(t time.Time) string { return t.UTC().Format(TimeFormat) }

// OptionalTimestamp writes a time as Timestamp does, and the zero time as "".
func OptionalTimestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return Timestamp(t)
}
