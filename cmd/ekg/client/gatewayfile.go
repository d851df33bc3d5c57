package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// GatewayFile is a file that a running gateway keeps in its state directory for other commands of the same user. Its
// name is gateway-PID.json, and its mode is 0600. The gateway holds a lock on it as long as it lives. A killed gateway
// leaves its file, but its lock is gone. The lock therefore shows whether a gateway lives; the process id may belong to
// another process or container.
type GatewayFile struct {
	URL         string    `json:"url"`
	Token       string    `json:"token"` // "" if the gateway requires none
	PID         int       `json:"pid"`
	Started     time.Time `json:"started"`               // UTC
	Certificate string    `json:"certificate,omitempty"` // SHA-256 of the gateway's certificate, in hexadecimal
}

const maxGatewayFile = 64 << 10 // bytes

// Shown returns the gateway's URL without a token.
func (g GatewayFile) Shown() string { return withoutQuery(g.URL) }

// Ask returns the gateway's version, and whether it is ready. Both routes need no token.
func (g GatewayFile) Ask(ctx context.Context) (version string, ready bool, err error) {
	client, err := newGatewayClient(g.URL, "", g.Certificate)
	if err != nil {
		return "", false, err
	}
	defer client.close()
	answer, err := client.get(ctx, "api", nil)
	if err != nil {
		return "", false, err
	}
	var about struct {
		Version string `json:"version"`
	}
	err = json.NewDecoder(io.LimitReader(answer.Body, maxGatewayFile)).Decode(&about)
	_ = answer.Body.Close() // it was read
	if err != nil {
		return "", false, fmt.Errorf("%s: the answer: %w", client.shown, err)
	}
	answer, err = client.get(ctx, "readyz", nil)
	var refused *refusedError
	if errors.As(err, &refused) && refused.status == http.StatusServiceUnavailable {
		return about.Version, false, nil
	}
	if err != nil {
		return about.Version, false, err
	}
	return about.Version, true, answer.Body.Close()
}
