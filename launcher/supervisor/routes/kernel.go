package routes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// reportText is the most bytes of what the cluster reports that are shown.
const reportText = 1000

// maxAssignment bounds the body of an assignment, in bytes. Linux allows about as much for a process.
const maxAssignment = 2 << 20

func (h *routes) getModel(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, h.kernel.Model())
	return nil
}

// patchKernel sets the time until which the kernel or its GPU is kept, whether or not it is idle.
func (h *routes) patchKernel(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		KeepUntil    json.RawMessage `json:"keep_until"`
		KeepGPUUntil json.RawMessage `json:"keep_gpu_until"`
	}
	var b json.RawMessage
	err := readBody(w, r, 4<<10, &b)
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		err = d.Decode(&body)
	}
	if err != nil || (body.KeepUntil == nil) == (body.KeepGPUUntil == nil) {
		return Error{http.StatusBadRequest,
			`the body is not {"keep_until" or "keep_gpu_until": "2006-01-02T15:04:05Z" or null}`}
	}
	gpu, member, value := body.KeepUntil == nil, "keep_until", body.KeepUntil
	if gpu {
		member, value = "keep_gpu_until", body.KeepGPUUntil
	}
	var text *string
	var until time.Time
	if err = json.Unmarshal(value, &text); err == nil && text != nil {
		until, err = time.Parse(time.RFC3339, *text)
	}
	if err != nil {
		return Error{http.StatusBadRequest, member + " is neither null nor a time like 2006-01-02T15:04:05Z (RFC 3339)"}
	}
	if err := h.kernel.Keep(gpu, until); err != nil {
		return err
	}
	return h.getModel(w, r)
}

func (h *routes) deleteKernel(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Reason string `json:"reason"`
	}
	err := readBody(w, r, 64<<10, &body)
	if err != nil {
		return Error{http.StatusBadRequest, "the body is not {\"reason\": \"...\"}"}
	}
	if body.Reason == "" {
		body.Reason = "it was shut down on request"
	}
	// A stop is carried out even if its client goes.
	err = h.kernel.Stop(context.WithoutCancel(r.Context()), body.Reason)
	if errors.Is(err, ErrOver) {
		err = nil
	}
	return noContent(w, err)
}

// noContent answers a request that has succeeded, unless err says that it has not.
func noContent(w http.ResponseWriter, err error) error {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

func (h *routes) postInterrupt(w http.ResponseWriter, _ *http.Request) error {
	return noContent(w, h.kernel.Interrupt())
}

func (h *routes) postRestart(w http.ResponseWriter, r *http.Request) error {
	err := h.kernel.Restart(context.WithoutCancel(r.Context()))
	if err != nil && !errors.Is(err, ErrOver) {
		return Error{http.StatusInternalServerError, err.Error()}
	}
	if err != nil {
		return err
	}
	h.awaitUp(r.Context())
	return h.getModel(w, r)
}

// awaitUp returns when the kernel has answered or is dead, at the latest after restartWait. A client may take a kernel
// that is not up for dead: jupyter_client's GatewayKernelManager fails if an answer takes a second.
func (h *routes) awaitUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, restartWait)
	defer cancel()
	for {
		st, changed := h.kernel.Status()
		if st.State != api.Starting && st.State != api.Restarting {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		case <-h.Source.Over:
			return
		}
	}
}

// putAssignment gives the kernel to its owner. It answers when the kernel has the variables and the working directory.
func (h *routes) putAssignment(w http.ResponseWriter, r *http.Request) error {
	var a api.Assignment
	err := readBody(w, r, maxAssignment, &a)
	if err == nil {
		err = a.Validate()
	}
	if err != nil {
		return Error{http.StatusBadRequest, "the body is not an assignment: " + err.Error()}
	}
	return noContent(w, h.kernel.Assign(r.Context(), a))
}

func (h *routes) putLimits(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		LogLimit int64 `json:"log_limit"`
	}
	err := readBody(w, r, 4<<10, &body) // a newer gateway may send more fields
	if err != nil || body.LogLimit <= 0 {
		return Error{http.StatusBadRequest, "the body is not {\"log_limit\": bytes}"}
	}
	h.Source.Log.SetLimit(body.LogLimit)
	return noContent(w, nil)
}

func (h *routes) putWaiting(w http.ResponseWriter, r *http.Request) error {
	var reported api.Waiting
	err := readBody(w, r, 16<<10, &reported)
	classes := []string{api.WaitingClass, api.NeverClass, api.DiedClass}
	if err != nil || !slices.Contains(classes, reported.Class) {
		return Error{http.StatusBadRequest,
			`the body is not {"class": "waiting", "never" or "died", "text": "...", "version": number}`}
	}
	reported.Text = api.PlainText(reported.Text, reportText)
	return noContent(w, h.kernel.SetWaiting(reported))
}

// putSeat stores whose turn it is at the GPU that the kernel shares.
func (h *routes) putSeat(w http.ResponseWriter, r *http.Request) error {
	var n api.SeatNews
	if err := readBody(w, r, 4<<10, &n); err != nil || n.Grant < 0 || n.Before < 0 {
		return Error{http.StatusBadRequest, `the body is not {"grant": number, "wanted": true or false, ...}`}
	}
	n.Problem = api.PlainText(n.Problem, reportText)
	return noContent(w, h.kernel.SetSeatNews(n))
}

// putNodeNotice stores why the kernel's node will go away soon. The pod and its kernel still run.
func (h *routes) putNodeNotice(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Text *string `json:"text"`
	}
	err := readBody(w, r, 16<<10, &body)
	if err != nil || body.Text == nil {
		return Error{http.StatusBadRequest, `the body is not {"text": "..."}`}
	}
	h.kernel.SetNodeNotice(api.PlainText(*body.Text, reportText))
	return noContent(w, nil)
}
