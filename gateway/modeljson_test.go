package gateway

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"testing/quick"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestModelJSON compares with encoding/json, so it also fails for a new field that appendJSON does not know.
func TestModelJSON(t *testing.T) {
	equal := func(m kernelModel) bool {
		want, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.appendJSON([]byte("before"))
		if err != nil {
			t.Fatal(err)
		}
		if got = bytes.TrimPrefix(got, []byte("before")); !bytes.Equal(got, want) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		return !t.Failed()
	}
	texts := []string{"", "3f0a6f5e-1d2c-4b7a-9e10-000000000001", "it's \"dead\" <b>&amp;</b> \\ \x00\x1f\x7f",
		"grüße \u2028 🙂", "\xff\xfe"}
	for _, text := range texts {
		equal(kernelModel{Model: api.Model{ID: text, Name: text, LastActivity: text, ExecutionState: api.State(text),
			Connections: 3, Reason: text, CullAt: text, KeepUntil: text}, Owner: text})
	}
	equal(kernelModel{SharedWith: []launcher.Grant{{User: "ann", Right: launcher.Read}}, SharedToUse: true})
	equal(kernelModel{SharedWith: []launcher.Grant{}})
	if err := quick.Check(equal, &quick.Config{MaxCount: 200}); err != nil {
		t.Error(err)
	}
	// Each field alone, without grants: those are left to encoding/json.
	v := reflect.New(reflect.TypeFor[kernelModel]()).Elem()
	for i := range v.NumField() {
		switch field := v.Field(i); {
		case field.Kind() == reflect.Struct:
			for j := range field.NumField() {
				set(field.Field(j))
			}
		case v.Type().Field(i).Name != "SharedWith":
			set(field)
		}
		equal(v.Interface().(kernelModel))
	}
}

// set gives a field a value that is not zero.
func set(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("text")
	case reflect.Int, reflect.Int64:
		v.SetInt(-7)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.ValueOf(&kernelJob{ID: "<a>", Name: "it's", Cell: 3, Cells: 9}))
	case reflect.Slice: // of devices
		half := 0.5
		v.Set(reflect.ValueOf([]api.GPU{{UUID: "<a>", Utilization: &half, MemoryUsed: 1 << 40}, {Error: "GPU is lost"}}))
	default:
		panic("a field of a new kind: " + v.Kind().String())
	}
}
