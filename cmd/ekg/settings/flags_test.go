package settings

import (
	"slices"
	"strings"
	"testing"
)

// TestOptions: an operator finds each option in the help, can set it in three ways, and sees its real default.
func TestOptions(t *testing.T) {
	var names, variables []string
	for _, o := range Options() {
		if o.Usage == "" || o.value.set == nil || o.value.show == nil {
			t.Errorf("%s is incomplete", o.Name)
		}
		if want := "EKG_" + strings.ToUpper(strings.ReplaceAll(o.Name, "-", "_")); len(o.Env) == 0 || o.Env[0] != want {
			t.Errorf("%s: its variable is %v, not %s", o.Name, o.Env, want)
		}
		if o.def != "" {
			s := &Settings{}
			if err := o.value.set(s, []string{o.def}); err != nil {
				t.Errorf("%s: its own default: %v", o.Name, err)
			} else if got := o.value.show(s); !slices.Equal(got, []string{o.def}) {
				t.Errorf("%s: its default %q is shown as %q", o.Name, o.def, got)
			}
		}
		names = append(names, o.Name)
		variables = append(variables, o.Env...)
	}
	for _, all := range [][]string{names, variables} {
		slices.Sort(all)
		if n := len(all); len(slices.Compact(all)) != n {
			t.Errorf("some of these is there twice: %v", all)
		}
	}
}
