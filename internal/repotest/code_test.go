package repotest

import (
	"bytes"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Decisions are integer arithmetic, so that their twins in other languages agree
// with them in every digit.
func TestStepsHaveNoFloats(t *testing.T) {
	for _, s := range sources(t, false) {
		if s.dir() != "core/step" || s.test {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				if n.Name == "float64" || n.Name == "float32" {
					t.Errorf("%s: %s", s.position(n), n.Name)
				}
			case *ast.BasicLit:
				if n.Kind == token.FLOAT {
					t.Errorf("%s: the literal %s", s.position(n), n.Value)
				}
			}
			return true
		})
	}
}

// A test that sleeps is slow when it passes and wrong when the machine is busy.
// Inside a bubble a sleep takes no time. Code that ships never sleeps: it could not be
// cancelled.
func TestNobodySleeps(t *testing.T) {
	for _, s := range sources(t, true) {
		used := s.imports()
		_, std := used["testing/synctest"]
		_, ours := used[module+"/internal/bubble"]
		tests := s.test || s.dir() == "internal/conformance/scenes" // which is what tests call
		if strings.HasPrefix(s.path, "examples/") || tests && (std || ours) {
			continue
		}
		for _, c := range s.calls("time", "Sleep") {
			t.Errorf("%s: time.Sleep: wait for the event itself, or use internal/bubble", s.position(c))
		}
	}
}

var skip = regexp.MustCompile(`\.Skip(f|Now)?\(`)

// A test that skips for want of redis-server must not do so under make test.
func TestRedisIsNotSkippedSilently(t *testing.T) {
	for _, s := range sources(t, true) {
		used := s.imports()
		_, server := used[module+"/internal/redistest"]
		_, client := used["github.com/redis/go-redis/v9"]
		if !server && !client && s.dir() != "internal/redistest" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(repository, s.path))
		if err != nil {
			t.Fatal(err)
		}
		if skip.Match(text) && !bytes.Contains(text, []byte("HEADGATE_REQUIRE_")) {
			t.Errorf("%s: under make test, a test that needs redis-server or its clock must fail, not skip", s.path)
		}
	}
}

// withNorace are NORACE_DIRS of the Makefile.
var withNorace = []string{"cmd", "core", "keyfuncs", "limits", "nethttp", "websocketmw", "internal/conformance"}

// make race finds the tests to run without the race detector by the first line that they have.
func TestNoraceIsFound(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil || !strings.Contains(string(makefile), "\nNORACE_DIRS := "+strings.Join(withNorace, " ")+"\n") {
		t.Errorf("the Makefile looks elsewhere than in %q: %v", withNorace, err)
	}
	for _, s := range sources(t, true) {
		calls := s.calls(module+"/internal/norace", "Test")
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil || !strings.HasPrefix(f.Name.Name, "Test") || len(f.Body.List) == 0 {
				continue
			}
			calls = slices.DeleteFunc(calls, func(c *ast.CallExpr) bool {
				return c.Pos() == f.Body.List[0].Pos() && slices.ContainsFunc(withNorace, func(dir string) bool { return strings.HasPrefix(s.dir()+"/", dir+"/") })
			})
		}
		for _, c := range calls {
			t.Errorf("%s: it is not the first line of a test in one of %q", s.position(c), withNorace)
		}
	}
}

// Every file or folder that a rule of the linter excepts is there.
func TestLintRulesNameFiles(t *testing.T) {
	config, err := os.ReadFile(filepath.Join(repository, ".golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}
	all := files(t)
	choice := regexp.MustCompile(`\(([^()?]*\|[^()]*)\)`)
	for _, rule := range regexp.MustCompile(`(?m)^ +(?:- )?path: (\S+)`).FindAllStringSubmatch(string(config), -1) {
		patterns := []string{rule[1]}
		if c := choice.FindStringSubmatchIndex(rule[1]); c != nil {
			patterns = nil
			for one := range strings.SplitSeq(rule[1][c[2]:c[3]], "|") {
				patterns = append(patterns, rule[1][:c[0]]+"(?:"+one+")"+rule[1][c[1]:])
			}
		}
		for _, p := range patterns {
			if strings.Contains(p, "(?:^)") { // at the root, or
				continue
			}
			if !slices.ContainsFunc(all, regexp.MustCompile(p).MatchString) {
				t.Errorf(".golangci.yml: no file is called %s", p)
			}
		}
	}
}
