package launcher

import "strings"

// Sentence ends a text with one full stop.
func Sentence(text string) string { return strings.TrimRight(text, ". ") + "." }

// StartingText says that a kernel is starting and, where the reason is known, what it waits for.
func StartingText(reason string) string {
	if reason == "" {
		return "The kernel is starting."
	}
	return "The kernel is starting: " + Sentence(reason)
}
