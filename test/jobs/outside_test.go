package jobs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The programs of this folder and of test/programs, which documents show, build in a module of another path: they use
// nothing that is internal.
func TestOutside(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sources, err := filepath.Glob(filepath.Join(root, "test", "jobs", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"test/programs/*/*.go", "test/migrating/*/*.go"} {
		more, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, more...)
	}
	copied := 0
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		rel, err := filepath.Rel(filepath.Join(root, "test"), name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, rel), string(text))
		copied++
	}
	if copied < 30 {
		t.Fatalf("only %d files were found", copied)
	}
	// The requirements are those of the module test, whose replacements are made absolute.
	mod, err := os.ReadFile(filepath.Join(root, "test", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(mod), "module github.com/headgate/headgate/test", "module example.com/app", 1)
	text = strings.ReplaceAll(text, "=> ../", "=> "+filepath.ToSlash(root)+"/")
	text = strings.ReplaceAll(text, "=> ..\n", "=> "+filepath.ToSlash(root)+"\n")
	if strings.Contains(text, "=> .") {
		t.Fatalf("a replacement is relative:\n%s", text)
	}
	write(t, filepath.Join(dir, "go.mod"), text)
	sum, err := os.ReadFile(filepath.Join(root, "test", "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "go.sum"), string(sum))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", os.DevNull, "./...")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
