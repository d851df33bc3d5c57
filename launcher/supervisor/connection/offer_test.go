package connection

import (
	"bytes"
	"encoding/base64"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestConn_Offers: compression is chosen only for an offer that the answer accepts as RFC 7692 defines it. A window of
// the server's that is smaller than its own would not be honoured.
func TestConn_Offers(t *testing.T) {
	const deflate = "permessage-deflate"
	for _, tc := range []struct {
		offers string // header lines, separated by line breaks
		want   bool
	}{
		{deflate, true},
		{deflate + "; client_max_window_bits", true}, // Chromium, aiohttp
		{deflate + ";client_max_window_bits", true},
		{deflate + "; client_max_window_bits=8", true},
		{deflate + "; client_max_window_bits=12", true},
		{deflate + "; client_max_window_bits=15", true},
		{deflate + `; client_max_window_bits="15"`, true},
		{deflate + "; client_max_window_bits = 15", true},
		{deflate + "; server_no_context_takeover", true},
		{deflate + "; client_no_context_takeover", true},
		{deflate + "; server_no_context_takeover; client_no_context_takeover", true}, // gorilla
		{deflate + "; client_no_context_takeover; client_max_window_bits=10; server_no_context_takeover", true},
		{" " + deflate + " ", true},
		{deflate + "; server_max_window_bits=8", false},
		{deflate + "; server_max_window_bits=9", false},
		{deflate + "; server_max_window_bits=10", false},
		{deflate + "; server_max_window_bits=11", false},
		{deflate + "; server_max_window_bits=12; client_max_window_bits=12", false}, // Python's websockets
		{deflate + "; server_max_window_bits=13", false},
		{deflate + "; server_max_window_bits=14", false},
		{deflate + `; server_max_window_bits="14"`, false},
		{deflate + "; server_max_window_bits=15", false}, // the answer would have to confirm it
		{deflate + "; server_max_window_bits", false},
		{deflate + "; server_max_window_bits=7", false},
		{deflate + "; server_max_window_bits=16", false},
		{deflate + "; client_max_window_bits=7", false},
		{deflate + "; client_max_window_bits=16", false},
		{deflate + "; client_max_window_bits=08", false},
		{deflate + "; client_max_window_bits=", false},
		{deflate + "; client_max_window_bits; client_max_window_bits", false},
		{deflate + "; server_no_context_takeover; server_no_context_takeover", false},
		{deflate + "; server_no_context_takeover=1", false},
		{deflate + "; client_no_context_takeover=true", false},
		{deflate + "; unknown", false},
		{deflate + "; unknown=1", false},
		{deflate + ";", false},
		{"x-webkit-deflate-frame", false},
		{"permessage-bzip2", false},
		{deflate + "-2", false},
		{"", false},
		// The first acceptable offer of a list, or of several lines, counts.
		{deflate + "; server_max_window_bits=10, " + deflate, true},
		{deflate + "; server_max_window_bits=10; client_max_window_bits, " + deflate + "; client_max_window_bits", true},
		{deflate + "; server_max_window_bits=10, " + deflate + "; server_max_window_bits=12", false},
		{"x-webkit-deflate-frame, " + deflate, true},
		{deflate + "; server_max_window_bits=9\n" + deflate, true},
		{deflate + "; server_max_window_bits=9\nx-webkit-deflate-frame", false},
	} {
		near, far := net.Pipe()
		f := &frameConn{ResponseWriter: httptest.NewRecorder(), Conn: near}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		for name, value := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket",
			"Sec-Websocket-Version": "13", "Sec-Websocket-Key": base64.StdEncoding.EncodeToString(make([]byte, 16))} {
			r.Header.Set(name, value)
		}
		r.Header["Sec-Websocket-Extensions"] = strings.Split(tc.offers, "\n")
		c := New(Options{Compress: true})
		if !c.Upgrade(f, r, nil) {
			t.Fatalf("%q: the handshake failed", tc.offers)
		}
		answered := bytes.Contains(f.head, []byte("\r\nSec-WebSocket-Extensions: permessage-deflate; "+
			"server_no_context_takeover; client_no_context_takeover\r\n"))
		named := bytes.Contains(f.head, []byte("Extensions"))
		if c.compresses != tc.want || answered != tc.want || named != tc.want {
			t.Errorf("%q: compressed %v, want %v; the answer is %q", tc.offers, c.compresses, tc.want, f.head)
		}
		_, _ = near.Close(), far.Close()
	}
}
