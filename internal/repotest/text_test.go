package repotest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// machinePath is the beginning of a path of somebody's machine.
var machinePath = regexp.MustCompile(`(?:^|[\s"'(=:` + "`" + `])/(?:work|root|Users)/`)

func TestFilesNameNobodysMachine(t *testing.T) {
	for _, name := range files(t) {
		text, err := os.ReadFile(filepath.Join(repository, name))
		if errors.Is(err, fs.ErrNotExist) { // deleted, and not yet committed
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(text, 0) >= 0 || strings.HasPrefix(name, "internal/repotest/") {
			continue
		}
		for i, line := range strings.Split(string(text), "\n") {
			if machinePath.MatchString(line) {
				t.Errorf("%s:%d: a path of one machine: %s", name, i+1, strings.TrimSpace(line))
			}
		}
	}
}

func TestMachinePath(t *testing.T) {
	for text, want := range map[string]bool{
		"see /work/main":                true,
		"/root/go":                      true,
		`open("/Users/a/b")`:            true,
		"https://example.org/work/a":    false,
		"benchmarks/work/results":       false,
		"GET /workspace and /roots and": false,
	} {
		if got := machinePath.MatchString(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// files returns the files that git tracks or would add, or all where there is no
// git or no repository.
func files(t *testing.T) []string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	c.Dir = repository
	if out, err := c.Output(); err == nil {
		return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
	}
	var all []string
	err := fs.WalkDir(os.DirFS(repository), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == ".bin") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() {
			all = append(all, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
