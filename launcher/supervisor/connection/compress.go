package connection

import (
	"net/http"
	"strings"

	"github.com/gorilla/websocket"
)

// Messages are compressed one by one (permessage-deflate without context takeover, RFC 7692), at the fastest level. A
// compressor takes about 1 MB while a message is written. So the program has few of them, and a message that finds none
// free is sent as it is.
const (
	compressFrom = 1 << 10 // bytes of a message; smaller ones gain little
	compressors  = 4
)

// compressing has an element for each compressor in use.
var compressing = make(chan struct{}, compressors)

// compressingUpgrader is upgrader for clients that may get compressed messages.
var compressingUpgrader = func() websocket.Upgrader {
	u := upgrader
	u.EnableCompression = true
	return u
}()

// chooseUpgrader returns the Upgrader for a request, and whether messages can be compressed. The gateway passes on the
// offer of a client only if its messages are to be compressed. No relay is compressed.
func (c *Conn) chooseUpgrader(r *http.Request) (*websocket.Upgrader, bool) {
	if c.o.Relay || !strings.Contains(strings.Join(r.Header["Sec-Websocket-Extensions"], ","), "permessage-deflate") {
		return &upgrader, false
	}
	return &compressingUpgrader, true
}

// writeMessage sends one websocket message, compressed if that is worth it and a compressor is free.
func (c *Conn) writeMessage(kind int, data []byte) error {
	if !c.compresses {
		return c.ws.WriteMessage(kind, data)
	}
	compress := false
	if len(data) >= compressFrom {
		select {
		case compressing <- struct{}{}:
			defer func() { <-compressing }()
			compress = true
		default:
		}
	}
	c.ws.EnableWriteCompression(compress)
	return c.ws.WriteMessage(kind, data)
}
