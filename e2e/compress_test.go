//go:build e2e

package e2e

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// TestE2E_CompressionInPage: a page in Chromium that connects through a proxy gets its output compressed.
func TestE2E_CompressionInPage(t *testing.T) {
	g := newGateway(t, "--compress-websockets")
	g.script(2*time.Minute, nil, "node", filepath.Join(g.in.repository, "e2e/testdata/browser/compression.mjs"))
}

// TestE2E_Compression: through a gateway with --compress-websockets, a client that a proxy forwards gets its output
// compressed, and can send compressed requests. A client of this machine gets none.
func TestE2E_Compression(t *testing.T) {
	g := newGateway(t, "--compress-websockets")
	id := g.kernel("python3")
	for _, forwardedFor := range []string{"", "192.0.2.1"} {
		header := http.Header{"Authorization": {"token " + g.token}, "User-Agent": {"test"}}
		if forwardedFor != "" {
			header.Set("X-Forwarded-For", forwardedFor)
		}
		d := websocket.Dialer{EnableCompression: true}
		ws, resp, err := d.Dial("ws"+strings.TrimPrefix(g.url, "http")+"/api/kernels/"+id+"/channels", header)
		if err != nil {
			t.Fatal(err)
		}
		chosen := resp.Header.Get("Sec-Websocket-Extensions")
		if got := strings.HasPrefix(chosen, "permessage-deflate"); got != (forwardedFor != "") {
			t.Errorf("X-Forwarded-For %q: the extensions are %q", forwardedFor, chosen)
		}
		request := map[string]any{"channel": "shell", "parent_header": struct{}{}, "metadata": struct{}{},
			"header": map[string]string{"msg_id": "m" + forwardedFor, "session": "s", "username": "", "version": "5.3",
				"msg_type": "execute_request", "date": "2026-01-01T00:00:00Z"},
			"content": map[string]any{"code": "print('line ' * 20000)" + strings.Repeat("#", 100000), "silent": false}}
		b, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		if err := ws.WriteMessage(websocket.TextMessage, b); err != nil {
			t.Fatal(err)
		}
		if err := ws.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		for text := ""; !strings.Contains(text, strings.Repeat("line ", 1000)); {
			_, data, err := ws.ReadMessage()
			if err != nil {
				t.Fatal(err)
			}
			text = string(data)
		}
		_ = ws.Close()
	}
}
