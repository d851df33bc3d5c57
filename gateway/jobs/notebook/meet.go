package notebook

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

const (
	// maxMet bounds the widgets of which a cell asks the kernel for the state.
	maxMet = 100
	// answerPatience is how long the run waits at the end of a cell for what the kernel says of widgets. Cells of other
	// clients may run before that.
	answerPatience = 10 * time.Second
)

// meet begins to keep the state of a widget that was opened before the run, as in an author's kernel. The kernel is
// asked for the state at the end of the cell. It returns nil if there are too many widgets.
func (r *run) meet(id string) *widget {
	cost := int64(outputCost + len(id))
	if len(r.state.Met) >= maxMet || len(r.state.Widgets) >= maxNamed || len(id) > maxNameSize || r.size+cost > r.limit {
		return nil
	}
	w := &widget{model: &model{State: map[string]json.RawMessage{}}, Earlier: true}
	r.grow(w, cost)
	r.state.Widgets[id] = w
	r.state.Met = append(r.state.Met, id)
	return w
}

// learn asks the kernel for the states of the widgets that the cell has met, and of the models to which these refer. It
// waits for the answers. Where none has come, the cell gets what the widget has taken.
func (r *run) learn(ctx context.Context) error {
	if len(r.state.Met) == 0 || r.state.Broken != "" {
		return nil
	}
	asked := map[string]string{} // the comm by the msg_id
	return r.await(ctx, asked, func() error {
		for _, id := range r.state.Met {
			msgID := r.msgID(r.state.Cell) + "-state-" + id
			if _, is := asked[msgID]; is {
				continue
			}
			asked[msgID] = id
			m := r.message("comm_msg", msgID, map[string]any{"comm_id": id, "data": map[string]any{"method": "request_state"}})
			if err := r.Conn.Send(ctx, m); err != nil {
				return err
			}
		}
		return nil
	})
}

// await waits until the kernel has done with messages of comms, by msg_id. They are removed from sent. send is called
// first and after each message of the kernel. It may add messages. The wait ends after answerPatience.
func (r *run) await(ctx context.Context, sent map[string]string, send func() error) error {
	limited, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	for r.state.Broken == "" {
		if err := send(); err != nil || len(sent) == 0 {
			return err
		}
		m, stop, err := r.receive(limited)
		if stop || err != nil && ctx.Err() == nil && limited.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		own, parent := headers(m)
		id, ours := sent[parent.MsgID]
		switch {
		case !ours:
			err = r.handle(ctx, m)
		case own.MsgType == "comm_msg" && slices.Contains(r.state.Met, id):
			err = r.answer(ctx, id, m)
		case own.MsgType == "status" && jupyter.StringField(m.Content, "execution_state") == "idle":
			delete(sent, parent.MsgID)
			err = r.forget(ctx, id)
		}
		if err == nil {
			err = r.hold(ctx, m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// answer takes the state of a widget that the run has met. The outputs of before stand in front of those that it has
// taken since.
func (r *run) answer(ctx context.Context, id string, m *jupyter.Message) error {
	c, ok, _ := judge(m)
	if !ok || c.CommID != id {
		return nil
	}
	ch := c.change(m.Buffers)
	w := r.state.Widgets[id]
	if ch.state["_model_name"] == nil || w.Output && !isOutput(ch.state) {
		return nil
	}
	if err := r.load(ctx, w); err != nil {
		return err
	}
	w.Output = isOutput(ch.state)
	earlier, taken := ch.state[memberOutputs], w.model.taken != nil
	if !w.Earlier || taken {
		delete(ch.state, memberOutputs)
	}
	front := w.Earlier && taken
	if front && r.size+int64(len(earlier)) > r.limit || !r.change(w, ch, 0) {
		return nil
	}
	if front {
		if err := r.putInFront(ctx, w, parseOutputs(earlier)); err != nil {
			return err
		}
	}
	w.Earlier = false
	r.state.Met = slices.DeleteFunc(r.state.Met, func(met string) bool { return met == id })
	for _, name := range slices.Sorted(maps.Keys(ch.state)) { // its layout and its style
		ref, is := bytes.CutPrefix(ch.state[name], []byte(`"IPY_MODEL_`))
		if other := string(bytes.TrimSuffix(ref, []byte(`"`))); is && r.state.Widgets[other] == nil {
			r.meet(other)
		}
	}
	return nil
}

// putInFront puts outputs in front of those that a widget has taken.
func (r *run) putInFront(ctx context.Context, w *widget, list []*output) error {
	later, err := w.outputs(ctx, r.Pieces)
	if err != nil {
		return err
	}
	r.grow(w, -w.taken())
	w.model.taken, w.Parts = []*output{}, nil
	for _, out := range slices.Concat(list, later) {
		if err := r.append(ctx, w, out); err != nil {
			return err
		}
	}
	return nil
}

// forget removes a widget whose state the kernel has not said. The cell gets the outputs that the widget has taken.
func (r *run) forget(ctx context.Context, id string) error {
	w, at := r.state.Widgets[id], r.state.Cell
	if !slices.Contains(r.state.Met, id) {
		return nil
	}
	if err := r.load(ctx, w); err != nil {
		return err
	}
	outputs, err := w.outputs(ctx, r.Pieces)
	if err == nil {
		err = r.tail(ctx, at)
	}
	if err != nil {
		return err
	}
	r.aim(id, w, map[string]json.RawMessage{memberMsgID: json.RawMessage(`""`)})
	delete(r.state.Widgets, id)
	r.size -= w.Size
	r.state.Met = slices.DeleteFunc(r.state.Met, func(met string) bool { return met == id })
	for _, out := range outputs {
		if r.fits(at, out.size(), out.other != nil && out.other.text("output_type") == "error") {
			r.put(at, out)
		}
	}
	return nil
}

// forgetAll forgets the widgets whose state is not known at the end of the cell.
func (r *run) forgetAll(ctx context.Context) error {
	for len(r.state.Met) > 0 {
		if err := r.forget(ctx, r.state.Met[0]); err != nil {
			return err
		}
	}
	return nil
}
