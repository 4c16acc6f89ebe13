package repotest

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

var update = flag.Bool("update", false, "rewrite the programs in the documents from the files they name")

// documents returns the pages that users read: their Go blocks are programs of this repository.
func documents(t *testing.T) []string {
	t.Helper()
	pages := []string{"README.md", "examples/README.md"}
	for _, name := range files(t) {
		if strings.HasPrefix(name, "docs/") && path.Ext(name) == ".md" {
			pages = append(pages, name)
		}
	}
	return pages
}

// Every block of Go in a document is a file that is compiled, or the body of an
// Example function. A comment above the block says which:
//
//	<!-- example: examples/quickstart/main.go -->
//	<!-- example: core/example_test.go ExampleNew -->
//
// A file is shown from its package clause on, a function's body without the
// comment that holds its expected output.
func TestProgramsInDocumentsAreCompiled(t *testing.T) {
	root := os.DirFS(repository)
	for _, name := range documents(t) {
		text, err := fs.ReadFile(root, name)
		if errors.Is(err, fs.ErrNotExist) { // deleted, and not yet committed
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		want, faults := refresh(root, string(text))
		if *update && want != string(text) {
			if err := os.WriteFile(filepath.Join(repository, name), []byte(want), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: rewritten", name)
		}
		for _, f := range faults {
			if !*update || !f.differs {
				t.Errorf("%s:%d: %s", name, f.line, f.text)
			}
		}
	}
}

// A fault of a document. One that differs is mended by -update.
type fault struct {
	line    int // of the opening fence
	text    string
	differs bool
}

var (
	fence  = regexp.MustCompile("^[ \t>]*(```+|~~~+) *([^ `]*)")
	marker = regexp.MustCompile(`^<!-- example: (\S+)(?: (Example\w*))? -->$`)
)

// refresh returns the document with its Go blocks as they should be, and what was
// wrong with them.
func refresh(root fs.FS, document string) (string, []fault) {
	var (
		out    []string
		faults []fault
		lines  = strings.Split(document, "\n")
		above  string // the last line that was not blank, outside of blocks
	)
	for i := 0; i < len(lines); i++ {
		open := fence.FindStringSubmatch(lines[i])
		out = append(out, lines[i])
		if open == nil {
			if s := strings.TrimSpace(lines[i]); s != "" {
				if marker.MatchString(above) {
					faults = append(faults, fault{line: i + 1, text: "there is no block of Go below " + above})
				}
				above = s
			}
			continue
		}
		first, end := i+1, i+1
		for end < len(lines) && !closes(lines[end], open[1]) {
			end++
		}
		block := lines[first:end]
		if open[2] == "go" || open[2] == "golang" {
			want, f := program(root, above, block)
			if f != nil {
				f.line = first
				faults = append(faults, *f)
			}
			block = want
		}
		out = append(out, block...)
		if end < len(lines) {
			out = append(out, lines[end])
		}
		i, above = end, ""
	}
	return strings.Join(out, "\n"), faults
}

// closes reports whether a line ends the block that open began.
func closes(line, open string) bool {
	s := strings.TrimSpace(line)
	return strings.HasPrefix(s, open) && strings.Trim(s, open[:1]) == ""
}

// program returns what a block should be, given the line above its fence.
func program(root fs.FS, above string, block []string) ([]string, *fault) {
	m := marker.FindStringSubmatch(above)
	if m == nil {
		return block, &fault{text: "a block of Go without <!-- example: FILE [EXAMPLE] --> above it"}
	}
	want, err := excerpt(root, m[1], m[2])
	if err != nil {
		return block, &fault{text: err.Error()}
	}
	if !slices.Equal(block, want) {
		text := fmt.Sprintf("the block is not %s: to rewrite it, go test ./internal/repotest -update", strings.TrimSpace(m[1]+" "+m[2]))
		return want, &fault{text: text, differs: true}
	}
	return want, nil
}

// excerpt returns the lines of a file from its package clause on, or those of the
// body of one of its functions.
func excerpt(root fs.FS, name, function string) ([]string, error) {
	if path.Ext(name) != ".go" || !fs.ValidPath(name) {
		return nil, fmt.Errorf("%q is no Go file of this repository", name)
	}
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	offset := func(p token.Pos) int { return set.Position(p).Offset }
	if function == "" {
		return split(string(text[offset(file.Package):])), nil
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil || f.Name.Name != function {
			continue
		}
		end := f.Body.Rbrace
		for _, c := range file.Comments {
			if f.Body.Lbrace < c.Pos() && c.End() < end && isOutput(c.Text()) {
				end = c.Pos()
			}
		}
		return dedent(split(string(text[offset(f.Body.Lbrace)+1 : offset(end)]))), nil
	}
	return nil, fmt.Errorf("%s has no function %s", name, function)
}

var outputMark = regexp.MustCompile(`(?i)^\s*(unordered )?output:`)

func isOutput(comment string) bool { return outputMark.MatchString(comment) }

// split returns the lines of s without blank ones at either end.
func split(s string) []string {
	lines := strings.Split(strings.TrimRight(s, " \t\n"), "\n")
	for len(lines) > 0 && strings.TrimSpace(lines[0]) == "" {
		lines = lines[1:]
	}
	return lines
}

// dedent removes one level of indentation.
func dedent(lines []string) []string {
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "\t")
	}
	return lines
}

func TestRefresh(t *testing.T) {
	root := fstest.MapFS{
		"examples/a/main.go": {Data: []byte("// About.\n\n// Package main is an example.\npackage main\n\nfunc main() {\n}\n")},
		"core/example_test.go": {Data: []byte(`package core_test

func ExampleNew() {
	if true {
		println()
	}

	// Output:
	// 1
}

func ExampleOld() {
	// A comment.
	println()
}
`)},
	}
	const (
		program = "package main\n\nfunc main() {\n}\n"
		body    = "if true {\n\tprintln()\n}\n"
	)
	for _, test := range []struct {
		name, document, want string
		faults               []string // the beginning of each
	}{
		{name: "nothing", document: "# Title\n\ntext\n"},
		{name: "other languages", document: "```sh\nmake\n```\n\n~~~\nx\n~~~\n"},
		{name: "a file", document: "<!-- example: examples/a/main.go -->\n\n```go\n" + program + "```\n"},
		{name: "a body", document: "<!-- example: core/example_test.go ExampleNew -->\n```go\n" + body + "```\nend\n"},
		{name: "a body without output", document: "<!-- example: core/example_test.go ExampleOld -->\n```go\n// A comment.\nprintln()\n```\n"},
		{
			name:     "no marker",
			document: "text\n\n```go\nx\n```\n",
			faults:   []string{"a block of Go without"},
		},
		{
			name:     "no block",
			document: "<!-- example: examples/a/main.go -->\n\ntext\n",
			faults:   []string{"there is no block of Go below"},
		},
		{
			name:     "the marker of the block before",
			document: "<!-- example: examples/a/main.go -->\n```go\n" + program + "```\n```go\n" + program + "```\n",
			faults:   []string{"a block of Go without"},
		},
		{
			name:     "no file",
			document: "<!-- example: examples/b/main.go -->\n```go\n```\n",
			faults:   []string{"open examples/b/main.go"},
		},
		{
			name:     "no function",
			document: "<!-- example: core/example_test.go ExampleNone -->\n```go\n```\n",
			faults:   []string{"core/example_test.go has no function ExampleNone"},
		},
		{
			name:     "outside",
			document: "<!-- example: ../main.go -->\n```go\n```\n",
			faults:   []string{`"../main.go" is no Go file`},
		},
		{
			name:     "a difference",
			document: "<!-- example: core/example_test.go ExampleNew -->\n```go\nif false {\n\tprintln()\n}\n```\nend\n",
			want:     "<!-- example: core/example_test.go ExampleNew -->\n```go\n" + body + "```\nend\n",
			faults:   []string{"the block is not core/example_test.go ExampleNew: to rewrite it"},
		},
		{
			name:     "no end",
			document: "<!-- example: examples/a/main.go -->\n```go\npackage main\n",
			want:     "<!-- example: examples/a/main.go -->\n```go\n" + strings.TrimSuffix(program, "\n"),
			faults:   []string{"the block is not examples/a/main.go"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, faults := refresh(root, test.document)
			want := test.want
			if want == "" {
				want = test.document
			}
			if got != want {
				t.Errorf("the document is %q, want %q", got, want)
			}
			if len(faults) != len(test.faults) {
				t.Fatalf("faults: %v, want %d", faults, len(test.faults))
			}
			for i, f := range faults {
				if !strings.HasPrefix(f.text, test.faults[i]) {
					t.Errorf("fault %q, want %q", f.text, test.faults[i])
				}
			}
		})
	}
}
