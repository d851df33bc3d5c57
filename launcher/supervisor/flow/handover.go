package flow

import (
	"fmt"
	"net"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/sendqueue"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// receiveTime is how long a gateway may take to send the socket of its client. It answers the client first.
const receiveTime = 20 * time.Second

// TakeOver receives the client's socket from the gateway at the other end, and makes it the peer: see package api. The
// connection to the gateway stays open until Close. TakeOver is called before anything is read. Only Close may be
// called concurrently.
func (f *Conn) TakeOver() error {
	gateway, ok := f.Conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("a %T carries no sockets", f.Conn)
	}
	if err := gateway.SetReadDeadline(time.Now().Add(receiveTime)); err != nil {
		return err
	}
	client, early, err := api.ReceiveSocket(gateway)
	if err != nil {
		return err
	}
	f.ending.Lock()
	defer f.ending.Unlock()
	if f.closed {
		_ = client.Close() // nothing was written
		return net.ErrClosed
	}
	f.Conn, f.gateway, f.early = client, gateway, early
	f.queue, f.watched = sendqueue.Of(client), false // from now on it is watched here
	f.progressed()
	return gateway.SetReadDeadline(time.Time{})
}

// AwaitGateway returns when the gateway has ended a connection that was taken over, or has died. The connection is
// closed then. Without TakeOver it returns at once.
func (f *Conn) AwaitGateway() {
	if f.gateway == nil {
		return
	}
	var sink [1]byte
	for {
		if _, err := f.gateway.Read(sink[:]); err != nil {
			_ = f.Close() // it may be closed already
			return
		}
	}
}

// CloseWrite ends the writing half of the connection. The peer gets everything that was written. A gateway that has
// handed over its client's socket does it, and closes the rest.
func (f *Conn) CloseWrite() error {
	conn := f.Conn
	if f.gateway != nil {
		conn = f.gateway
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close closes the connection, and the one to the gateway that has handed it over.
func (f *Conn) Close() error {
	f.ending.Lock()
	defer f.ending.Unlock()
	f.closed = true
	err := f.Conn.Close()
	if f.gateway != nil { // after the client's: the gateway reads what is left there
		_ = f.gateway.Close() // nothing is written to it
	}
	return err
}
