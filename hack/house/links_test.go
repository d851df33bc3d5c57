package house

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"
)

var (
	// markdownLink matches [text](target), images included, and its form in HTML.
	markdownLink = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)|(?:src|href)="([^"]+)"`)
	inlineCode   = regexp.MustCompile("`[^`\n]*`")
	heading      = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
	linkText     = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
)

// Every relative link and every anchor in the documents leads somewhere.
func TestDocs_Links(t *testing.T) {
	documents, broken := checkLinks(t, os.DirFS("../.."))
	if documents < 10 {
		t.Fatalf("got %d documents: the test would prove nothing", documents)
	}
	for _, b := range broken {
		t.Error(b)
	}
}

func TestDocs_LinksFindsWhatIsBroken(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	_, broken := checkLinks(t, fstest.MapFS{
		"README.md": file("# A `title`, twice\n## A title, twice\n" +
			"[to](docs/b.md) [anchor](docs/b.md#two-words) [own](#a-title-twice) [second](#a-title-twice-1) " +
			"![no](docs/none.png)\n" +
			"[no anchor](docs/b.md#three-words) [no file](docs/c.md) [out](https://example.com/x.md) [above](../x.md) " +
			"[folder](docs)\n" +
			"`[code](none.md)`\n```\n[code](none.md)\n# No heading\n```\n[no heading](#no-heading)\n<img src=\"none.svg\">\n"),
		"docs/b.md":         file("## [Two](x) words\n[back](../README.md)\n[up](/README.md)\n"),
		"node_modules/c.md": file("[no file](none.md)\n"),
	})
	want := []string{
		"README.md:3: docs/none.png: no such file",
		"README.md:4: ../x.md: no such file",
		"README.md:4: docs/b.md#three-words: no such heading",
		"README.md:4: docs/c.md: no such file",
		"README.md:10: #no-heading: no such heading",
		"README.md:11: none.svg: no such file",
		"docs/b.md:1: x: no such file",
		"docs/b.md:3: /README.md: no such file",
	}
	slices.Sort(broken)
	slices.Sort(want)
	if !slices.Equal(broken, want) {
		t.Errorf("got %q, want %q", broken, want)
	}
}

// checkLinks returns the number of documents in a file system, and the links in them that lead nowhere.
func checkLinks(t *testing.T, root fs.FS) (documents int, broken []string) {
	t.Helper()
	anchors := map[string][]string{} // by document
	links := map[string]map[int][]string{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == "artifacts" || len(d.Name()) > 1 && d.Name()[0] == '.'):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".md":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		anchors[name], links[name] = readMarkdown(string(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for document, lines := range links {
		for number, targets := range lines {
			for _, target := range targets {
				if problem := checkLink(root, anchors, document, target); problem != "" {
					broken = append(broken, fmt.Sprintf("%s:%d: %s: %s", document, number, target, problem))
				}
			}
		}
	}
	return len(links), broken
}

// checkLink says what is wrong with a link, "" if it is right or leads out of the repository.
func checkLink(root fs.FS, anchors map[string][]string, document, target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return err.Error()
	}
	if u.Scheme != "" || u.Host != "" {
		return ""
	}
	file := document
	if u.Path != "" {
		file = path.Join(path.Dir(document), u.Path)
		if path.IsAbs(u.Path) || !fs.ValidPath(file) {
			return "no such file"
		}
	}
	if _, err := fs.Stat(root, file); err != nil {
		return "no such file"
	}
	if known, isDocument := anchors[file]; isDocument && u.Fragment != "" && !slices.Contains(known, u.Fragment) {
		return "no such heading"
	}
	return ""
}

// readMarkdown returns the anchors that GitHub gives to a document's headings, and its links by line.
func readMarkdown(text string) (anchors []string, links map[int][]string) {
	links = map[int][]string{}
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if fenced {
			continue
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			anchors = append(anchors, anchor(m[1], anchors))
		}
		for _, m := range markdownLink.FindAllStringSubmatch(inlineCode.ReplaceAllString(line, ""), -1) {
			links[i+1] = append(links[i+1], m[1]+m[2])
		}
	}
	return anchors, links
}

// anchor is the one that GitHub gives to a heading after others.
func anchor(title string, before []string) string {
	title = linkText.ReplaceAllString(title, "$1")
	a := strings.Map(func(r rune) rune {
		switch {
		case r == ' ' || r == '-':
			return '-'
		case r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, title)
	for n, same := 1, a; ; n++ {
		if !slices.Contains(before, same) {
			return same
		}
		same = a + "-" + strconv.Itoa(n)
	}
}
