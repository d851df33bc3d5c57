package api

import (
	"encoding/json"
	"testing"
)

// BenchmarkParseConfig measures what each parent and each supervisor does at its start.
func BenchmarkParseConfig(b *testing.B) {
	text, err := json.Marshal(Config{Protocol: ProtocolVersion, KernelID: "k", SpecName: "fake", Owner: "ann",
		Argv: []string{"kernel"}, Env: map[string]string{"PATH": "/bin", "HOME": "/root"}, WorkingDir: "/",
		InterruptMode: "signal", Listen: "unix:/s", ConnectionFile: "/c", Transport: "ipc", RunDir: "/r", LockFile: "/l",
		SpillDir: "/d", EndFile: "/e", ChildSocket: "/c", SameMachine: true, LogLimit: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := ParseConfig(text); err != nil {
			b.Fatal(err)
		}
	}
}
