package repotest

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The commands in the documents that reproduce a figure, or run a test for longer, find a test.
func TestCommandsInDocumentsFindTests(t *testing.T) {
	functions := make(map[string][]string) // of each folder's tests
	for _, s := range sources(t, true) {
		if !s.test {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				functions[s.dir()] = append(functions[s.dir()], f.Name.Name)
			}
		}
	}
	found := 0
	for _, name := range files(t) {
		if path.Ext(name) != ".md" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil {
			continue // deleted, and not yet committed
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, c := range testCommands(path.Dir(name), line) {
				found++
				if !c.finds(functions[c.dir]) {
					t.Errorf("%s:%d: %s finds nothing in %s", name, i+1, c.text, c.dir)
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d commands were found", found)
	}
}

var runCommand = regexp.MustCompile(`go run (?:-C (\S+) )?\./([\w/-]+)`)

// The programs that documents tell to run are there: in the root, in the module of the tests, or where the command says.
func TestCommandsInDocumentsFindPrograms(t *testing.T) {
	for _, name := range files(t) {
		text, err := os.ReadFile(filepath.Join(repository, name))
		if path.Ext(name) != ".md" || name == "CHANGELOG.md" || err != nil {
			continue
		}
		for _, m := range runCommand.FindAllStringSubmatch(string(text), -1) {
			folders := []string{m[1]}
			if m[1] == "" {
				folders = []string{".", "test", "headgated", "contrib/grpcmw"}
			}
			if !slices.ContainsFunc(folders, func(folder string) bool {
				found, _ := filepath.Glob(filepath.Join(repository, folder, m[2], "*.go"))
				return len(found) > 0
			}) {
				t.Errorf("%s: there is no program for %s", name, m[0])
			}
		}
	}
}

// A testCommand is one of go test that names a package.
type testCommand struct {
	text, dir string
	selects   [][2]*regexp.Regexp // for each flag, what the names of such functions match, and those meant
}

var (
	testCommandForm = regexp.MustCompile("(?:cd (\\.\\.|[\\w/-]+) && )?(go test [^`]*?\\./([\\w/-]+)[^`]*)")
	selection       = regexp.MustCompile(`-(run|bench|fuzz) '?([^' ]+)`)
	selected        = map[string]*regexp.Regexp{
		"run": regexp.MustCompile("^(Test|Fuzz|Example)"), "bench": regexp.MustCompile("^Benchmark"), "fuzz": regexp.MustCompile("^Fuzz"),
	}
)

// testCommands returns those of a line of a document in that folder. They are for the root of the
// repository, or of the module in test, which cd .. leaves.
func testCommands(folder, line string) []testCommand {
	if folder != "test" && !strings.HasPrefix(folder, "test/") {
		folder = "."
	} else {
		folder = "test"
	}
	var all []testCommand
	for _, m := range testCommandForm.FindAllStringSubmatch(line, -1) {
		switch m[1] {
		case "":
		case "..":
			folder = "."
		default:
			folder = m[1]
		}
		c := testCommand{text: strings.TrimSpace(m[2]), dir: path.Join(folder, m[3])}
		for _, s := range selection.FindAllStringSubmatch(m[2], -1) {
			if s[2] == "^$" {
				continue
			}
			name, _, _ := strings.Cut(strings.ReplaceAll(s[2], `\|`, "|"), "/") // tables escape it
			c.selects = append(c.selects, [2]*regexp.Regexp{selected[s[1]], regexp.MustCompile(name)})
		}
		all = append(all, c)
	}
	return all
}

// finds reports whether each flag selects one of the functions.
func (c testCommand) finds(functions []string) bool {
	for _, s := range c.selects {
		if !slices.ContainsFunc(functions, func(f string) bool { return s[0].MatchString(f) && s[1].MatchString(f) }) {
			return false
		}
	}
	return len(functions) > 0
}

func TestTestCommands(t *testing.T) {
	functions := []string{"TestAlloc", "BenchmarkHotAdmitted", "FuzzParse", "helper"}
	for line, want := range map[string]bool{
		"go test ./core":                                         true,
		"| `go test ./core -run Alloc` |":                        true,
		"go test ./core -run '^$' -bench .":                      true,
		`go test ./core -run '^$' -bench 'Hot(Admitted\|Other)'`: true,
		"go test -bench Hot ./core":                              true,
		"cd core && go test ./core -run TestAlloc/sub":           false,
		"go test ./core -run Hot":                                false,
		"go test ./core -run helper":                             false,
		"go test ./core -run '^$' -bench Cold":                   false,
		"go test ./core -run Alloc -bench Alloc":                 false,
		"go test ./core -run '^$' -fuzz '^FuzzParse$'":           true,
		"go test ./nothing":                                      false,
	} {
		all := testCommands("docs", line)
		if len(all) != 1 {
			t.Fatalf("%q: %d commands", line, len(all))
		}
		if got := all[0].finds(map[string][]string{"core": functions}[all[0].dir]); got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
	for line, want := range map[string]string{"go test ./core": "test/core", "cd .. && go test ./core": "core", "cd internal && go test ./core": "internal/core"} {
		if got := testCommands("test/benchmarks", line)[0].dir; got != want {
			t.Errorf("%q in test/benchmarks: a test of %s, want %s", line, got, want)
		}
	}
}
