package kernelspecs

import (
	"fmt"
	"strings"
)

// Problem is something wrong with a kernelspec, or with a directory of them, told with the place to mend.
type Problem struct {
	Spec    string // name of the spec; "" if the problem is not that of one spec
	File    string // absolute path of the file or directory
	Line    int    // 1-based line in File; 0 if it has none
	Key     string // dotted key in kernel.json, like env.PATH or argv[0]; "" if it is not about one
	Message string // what is wrong, in lower case
}

// String gives file:line: key: message, without the parts that are not known.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	b.WriteString(": ")
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}
