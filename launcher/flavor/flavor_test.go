package flavor

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// every has a flavor of each kind.
const every = `flavors:
- name: t4
  label: T4, 16 GiB
  gpu: {}
  nodeSelector: {nvidia.com/gpu.product: Tesla-T4}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
  runtimeClass: nvidia
  spot: true
  pricePerHour: 0.35
- {name: two, gpu: {count: 2}}
- {name: a100-10g, mig: {profile: 1g.10gb}, units: 0.125}
- {name: a100-5g, mig: {profile: 1g.5gb, strategy: single}, nodeSelector: {size: small}}
- {name: quarter, replica: {replicas: 4}, park: true}
- {name: gib4, gpuMem: {units: 4, corePercent: 30, perGPU: 14}}
- {name: gib2, gpuMem: {units: 2}}
- {name: vgpu, hami: {memoryMiB: 3000, corePercent: 30}}
- {name: half, hami: {memoryPercent: 50, count: 2}, groups: [vision]}
- {name: claim, dra: {template: gpus}}
- {name: big, dra: {deviceClass: gpu.nvidia.com, selectors: ['device.attributes["gpu.nvidia.com"].type == "gpu"']}}
- {name: any, dra: {firstAvailable: [{deviceClass: a}, {deviceClass: b, count: 2}]}}
- {name: mi300, resource: {name: amd.com/gpu}, users: [ann]}
- {name: cpu, none: true}
`

func TestParse(t *testing.T) {
	flavors, err := parse("f.yaml", []byte(every))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"t4": "gpu 1", "two": "gpu 2", "a100-10g": "mig 0.125", "a100-5g": "mig 1",
		"quarter": "replica 0.25",
		"gib4":    "gpuMem 0.285", "gib2": "gpuMem 1", "vgpu": "hami 1", "half": "hami 1", "claim": "dra 1", "big": "dra 1",
		"any": "dra 2", "mi300": "resource 1", "cpu": "none 0"}
	for _, f := range flavors {
		if got := f.Kind() + " " + f.Size().String(); got != want[f.Name] {
			t.Errorf("%s is %s, want %s", f.Name, got, want[f.Name])
		}
	}
	if len(flavors) != len(want) || flavors[0].Title() != "T4, 16 GiB" || flavors[1].Title() != "two" {
		t.Errorf("%+v", flavors)
	}
	if flavors, err := parse("f.yaml", nil); len(flavors) != 0 || err != nil {
		t.Errorf("empty file: %v, %v", flavors, err)
	}
}

func TestParse_Problems(t *testing.T) {
	entry := func(text string) string { return "flavors:\n- " + text + "\n" }
	for _, tt := range []struct{ text, want string }{
		{entry("{name: T4, gpu: {}}"), `f.yaml:2: flavors[0]: name: "T4" is not a name`},
		{entry("{name: a--b, gpu: {}}"), `name: "a--b" is not a name`},
		{entry("{name: ../x, gpu: {}}"), `name: "../x" is not a name`},
		{entry("{gpu: {}}"), `name: "" is not a name`},
		{entry("{name: " + strings.Repeat("a", 41) + ", gpu: {}}"), "at most 40 bytes"},
		{entry("{name: a}"), "f.yaml:2: flavors[0]: has no kind; exactly one is needed of dra, gpu,"},
		{entry("{name: a, gpu: {}, none: true}"), "has the kinds gpu and none; exactly one is needed"},
		{entry("{name: a, gpus: {}}"), "f.yaml:2: unknown key gpus"},
		{entry("{name: a, gpu: {count: -1}}"), "gpu.count: -1 is not a number from 0"},
		{entry("{name: a, gpu: {}, units: -1}"), "f.yaml:2: units: not a number of GPUs"},
		{entry("{name: a, gpu: {}, units: [1]}"), "f.yaml:2: units: not a number of GPUs"},
		{entry("{name: a, gpu: {}, jobsGiveWay: -1s}"), "jobsGiveWay: is negative"},
		{entry("{name: a, gpu: {}, jobsGiveWay: soon}"), "f.yaml:2: str `soon` has the wrong type"},
		{entry("{name: a, none: true, units: 1}"), "units: a flavor without a GPU counts as no GPU"},
		{entry("{name: a, mig: {profile: small}}"), `mig.profile: "small" is not a profile like 1g.10gb`},
		{entry("{name: a, mig: {profile: 1g.5gb, strategy: single}}"), "mig.strategy: single needs a nodeSelector"},
		{entry("{name: a, mig: {profile: 1g.5gb, strategy: both}}"), "mig.strategy: is not mixed or single"},
		{entry("{name: a, gpu: {}, park: true}"), "park: needs the kind replica"},
		{entry("{name: a, dra: {template: x}, park: true}"), "park: needs the kind replica"},
		{entry("{name: a, replica: {replicas: 2, resource: nvidia.com/mig-1g.5gb.shared}, park: true}"),
			`park: "nvidia.com/mig-1g.5gb.shared" is a part of a GPU`},
		{entry("{name: a, replica: {}}"), "replica.replicas: 0 is not a number from 2"},
		{entry("{name: a, replica: {replicas: 2, resource: gpu}}"), `replica.resource: "gpu" is not the name of an extended`},
		{entry("{name: a, gpuMem: {}}"), "gpuMem.units: 0 is not a number from 1"},
		{entry("{name: a, gpuMem: {units: 20, perGPU: 14}}"), "gpuMem.perGPU: is less than gpuMem.units"},
		{entry("{name: a, gpuMem: {units: 1, corePercent: 101}}"), "gpuMem.corePercent: 101"},
		{entry("{name: a, hami: {memoryMiB: 1, memoryPercent: 1}}"), "hami: has both memoryMiB and memoryPercent"},
		{entry("{name: a, dra: {}}"), `dra.deviceClass: "" is not the name of a device class`},
		{entry("{name: a, dra: {template: x, deviceClass: y}}"), "dra: has a template, which says all"},
		{entry("{name: a, dra: {deviceClass: x, firstAvailable: [{deviceClass: y}]}}"), "dra: has both a request of its own"},
		{entry("{name: a, dra: {firstAvailable: [{deviceClass: X}]}}"), `dra.firstAvailable[0].deviceClass: "X" is not`},
		{entry("{name: a, resource: {name: cpu}}"), `resource.name: "cpu" is not the name of an extended resource`},
		{entry("{name: a, resource: {name: kubernetes.io/x}}"), "resource.name"},
		{entry("{name: a, gpu: {}, placeholders: 1}"), "placeholders: was removed; use the component placeholders"},
		{entry("{name: a, gpu: {}, pricePerHour: -1}"), "pricePerHour: is not a number from 0"},
		{entry("{name: a, gpu: {}, pricePerHour: .inf}"), "pricePerHour: is not a number from 0"},
		{entry("{name: a, gpu: {}, pricePerHour: .nan}"), "pricePerHour: is not a number from 0"},
		{entry("{name: a, gpu: {}, nodeSelector: {'a b': c}}"), `nodeSelector: "a b" is not a valid label key`},
		{entry("{name: a, gpu: {}, tolerations: [{operator: In}]}"), "tolerations[0].operator: is not Equal or Exists"},
		{entry("{name: a, gpu: {}, tolerations: [{}]}"), "tolerations[0]: a toleration without a key needs"},
		{entry("{name: a, gpu: {}, runtimeClass: A_b}"), `runtimeClass: "A_b" is not a valid Kubernetes name`},
		{entry("{name: a, gpu: {}}\n- {name: a, none: true}"), "f.yaml:3: flavors[1]: line 2 already has the flavor \"a\""},
		{"flavors: {}\n", "f.yaml:1: map has the wrong type"},
		{"flavors: []\n---\n{}\n", "more than one YAML document"},
		{"a: [", "f.yaml:"},
	} {
		_, err := parse("f.yaml", []byte(tt.text))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s\n%v; want %s", tt.text, err, tt.want)
		}
	}
}

func TestFlavor_MayChoose(t *testing.T) {
	for _, tt := range []struct {
		f      Flavor
		groups []string
		want   bool
	}{
		{Flavor{}, nil, true},
		{Flavor{Users: []string{"ann"}}, nil, true},
		{Flavor{Users: []string{"bob"}}, nil, false},
		{Flavor{Groups: []string{"vision"}}, []string{"vision"}, true},
		{Flavor{Groups: []string{"vision"}}, nil, false},
		{Flavor{Users: []string{"bob"}, Groups: []string{"vision"}}, []string{"vision"}, true},
	} {
		if got := tt.f.MayChoose("ann", tt.groups); got != tt.want {
			t.Errorf("%+v, groups %v: %v", tt.f, tt.groups, got)
		}
	}
}

func TestFile_Reload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flavors.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("flavors: [{name: a, gpu: {}}]\n")
	var lines strings.Builder
	f, err := Open(path, slog.New(slog.NewTextHandler(&lines, nil)))
	if err != nil {
		t.Fatal(err)
	}
	names := func() (list string) {
		for _, f := range f.List() {
			if f.MayChoose("ann", nil) {
				list += f.Name + " "
			}
		}
		return list
	}
	for _, step := range []struct{ text, names, log string }{
		{"flavors: [{name: a, gpu: {}}]\n", "a ", ""},
		{"flavors: [{name: b, gpu: {}}, {name: c, none: true, users: [bob]}]\n", "b ", "read again"},
		{"flavors: [{name: B, gpu: {}}]\n", "b ", "its last valid version still counts"},
		{"flavors: [{name: B, gpu: {}}]\n", "b ", ""},
		{"flavors: [{name: b, gpu: {}}, {name: c, none: true, users: [bob]}]\n", "b ", "read again"},
	} {
		lines.Reset()
		write(step.text)
		if got := names(); got != step.names {
			t.Errorf("after %s: %q, want %q", step.text, got, step.names)
		}
		if log := lines.String(); !strings.Contains(log, step.log) || step.log == "" && log != "" {
			t.Errorf("after %s: logged %q, want %q", step.text, log, step.log)
		}
	}
	write("flavors: [{name: b, gpu: {count: " + strings.Repeat(" ", 1<<20) + "2}}]\n")
	if got := names(); got != "b " {
		t.Errorf("with a file that is too long: %q", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := names(); got != "b " {
		t.Errorf("without the file: %q", got)
	}
	if _, err := Open(path, slog.Default()); err == nil {
		t.Error("a missing file is accepted at the start")
	}
}

// A file that has not changed is not parsed for each request.
func TestFile_ParsedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flavors.yaml")
	for _, text := range []string{every, "flavors: [{name: B}" + strings.Repeat(", {name: B}", 100) + "]"} {
		if err := os.WriteFile(path, []byte(every), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f.List()
		if n := testing.AllocsPerRun(10, func() { f.List() }); n > 100 {
			t.Errorf("%d bytes: %v allocations", len(text), n)
		}
	}
}
