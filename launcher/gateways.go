package launcher

import (
	"context"
	"time"
)

// Gateway is one of the gateways that serve the same kernels.
type Gateway struct {
	Name    string    // of its pod, or the address at which it listens
	Self    bool      // the one that was asked; its Version and Ready need not be set
	Version string    // of its program; "" if it is not known
	Started time.Time // UTC; zero if it is not known
	Ready   bool      // it takes requests
	Problem string    // one sentence: why it is not ready, or its version is not known; "" otherwise
}

// GatewayViewer knows the gateways that serve the same kernels. Launchers may implement it.
type GatewayViewer interface {
	// ViewGateways returns all of them, in a fixed order. It may be called concurrently.
	ViewGateways(ctx context.Context) ([]Gateway, error)
}
