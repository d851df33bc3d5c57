package client

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// completionFlag is the flag by which shells ask for words, as urfave/cli names it.
const completionFlag = "--generate-bash-completion"

// completionScripts are by shell. They ask ekg itself for the words, kernels' ids included.
var completionScripts = map[string]string{
	"bash": `_ekg() {
	local words=("${COMP_WORDS[@]:0:COMP_CWORD}") current=${COMP_WORDS[COMP_CWORD]}
	[[ $current == -* ]] && words+=("$current")
	mapfile -t COMPREPLY < <(compgen -W "$("${words[@]}" --generate-bash-completion 2>/dev/null)" -- "$current")
}
complete -o bashdefault -o default -F _ekg ekg
`,
	"zsh": `#compdef ekg
_ekg() {
	local -a answers
	local given=("${words[@]:0:$CURRENT-1}") current=${words[$CURRENT]}
	[[ $current == -* ]] && given+=("$current")
	answers=("${(@f)$("${given[@]}" --generate-bash-completion 2>/dev/null)}")
	if [[ -n $answers[1] ]]; then compadd -- $answers; else _files; fi
}
compdef _ekg ekg
`,
	"fish": `function __ekg_words
	set -l given (commandline -opc)
	set -l current (commandline -ct)
	string match -q -- '-*' $current; and set -a given $current
	$given --generate-bash-completion 2>/dev/null
end
complete -c ekg -a '(__ekg_words)'
`,
}

// completionCommand is `ekg completion`.
func completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print a script that completes ekg's commands in a shell", ArgsUsage: "bash|zsh|fish",

		Description: "bash: put  source <(ekg completion bash)  into ~/.bashrc\n" +
			"zsh:  put  source <(ekg completion zsh)  into ~/.zshrc, behind compinit\n" +
			"fish: ekg completion fish > ~/.config/fish/completions/ekg.fish",
		BashComplete: func(c *cli.Context) {
			_, _ = io.WriteString(c.App.Writer, "bash\nzsh\nfish\n") // the shell shows what it gets
		},
		Action: func(c *cli.Context) error {
			if err := Arguments(c, 1); err != nil {
				return err
			}
			script, ok := completionScripts[c.Args().First()]
			if !ok {
				return &UsageError{fmt.Errorf("%s: %q is not bash, zsh or fish", c.Command.HelpName, c.Args().First())}
			}
			_, err := io.WriteString(c.App.Writer, script)
			return err
		},
	}
}

// complete prints the words that may follow given, for a shell. If the last word of given begins with "-" and is no
// whole flag, it is the one to complete. No command is executed, whatever given is.
func complete(ctx context.Context, p *cli.App, given []string) error {
	command, _ := commandOf(p, given)
	if last := given[len(given)-1]; command != nil && strings.HasPrefix(last, "-") {
		flags := valueFlags(command)
		name, _, hasValue := strings.Cut(strings.TrimLeft(last, "-"), "=")
		switch takesValue, known := flags[name]; {
		case !known:
			return printFlags(p.Writer, flags, last)
		case takesValue && !hasValue:
			return nil // the shell offers files
		}
	}
	// The parser does not see the completion flag behind "--", and would execute the command.
	given = slices.DeleteFunc(slices.Clone(given), func(word string) bool { return word == "--" })
	return p.RunContext(ctx, append(flagsFirst(p, given), completionFlag))
}

// printFlags prints the flags that begin with a text.
func printFlags(w io.Writer, flags map[string]bool, begin string) error {
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		flag := "--" + name
		if len(name) == 1 {
			flag = "-" + name
		}
		if !strings.HasPrefix(flag, begin) {
			continue
		}
		if _, err := fmt.Fprintln(w, flag); err != nil {
			return err
		}
	}
	return nil
}
