package channels

import (
	"slices"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// setReason notes why the kernel is not there, and shows it.
func (c *Waiting) setReason(reason string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reason = reason
	return c.showReasonLocked()
}

// showReasonLocked shows why the kernel is not there, if the wait is long enough to be shown.
func (c *Waiting) showReasonLocked() error {
	if time.Since(c.began) < lobbyPatience {
		return nil
	}
	return c.showLocked(launcher.StartingText(c.reason))
}

// showLocked replaces the text under the first cell; "" removes it. Before the first cell nothing is shown.
func (c *Waiting) showLocked(text string) error {
	if c.display == nil {
		return nil
	}
	first := c.display.Text == ""
	m, changed := c.display.Show(c.session, text)
	if !changed {
		return nil
	}
	if first {
		if err := c.sendLocked(notice.State(c.session, c.display.Parent, "busy")); err != nil {
			return err
		}
	}
	return c.sendLocked(m)
}

// reportDeath shows under the first cell that the kernel has died, and answers all requests. Requests for the kernel's
// info get no reply, only the idle: see notice.Fails.
func (c *Waiting) reportDeath(reason string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.showLocked("The kernel is dead: " + launcher.Sentence(reason)); err != nil {
		return err
	}
	for _, req := range c.requests {
		if notice.Fails(req.msgType) {
			failure := notice.Failure{Status: "error", Name: "KernelDied", Reason: reason}
			if err := c.sendLocked(notice.Reply(req.channel, req.msgType, c.session, req.header, failure)); err != nil {
				return err
			}
		}
		if err := c.sendLocked(notice.State(c.session, req.header, "idle")); err != nil {
			return err
		}
	}
	return c.sendLocked(notice.State(c.session, nil, "dead"))
}

// sendLocked sends a message to the client in the client's framing.
func (c *Waiting) sendLocked(m jupyter.Message) error {
	frame := framing.Encode(&m, c.framing)
	kind, data := websocket.TextMessage, frame.Bytes()
	if frame.Binary {
		kind, data = websocket.BinaryMessage, append(slices.Clone(c.cursor), frame.Bytes()...)
	}
	if err := c.ws.SetWriteDeadline(time.Now().Add(lobbyWrite)); err != nil {
		return err
	}
	return c.ws.WriteMessage(kind, data)
}
