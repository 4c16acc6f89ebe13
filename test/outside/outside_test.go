// Package outside builds contrib, and the examples of packages, in a module of another path: they use only what
// everybody can.
package outside

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	project = "github.com/headgate/headgate"
	outside = "example.org/outside"
)

// contrib are the folders whose code is copied.
var contrib = []string{"rpc", "grpcmw", "connectmw", "echov5mw", "otelheadgate", "promheadgate"}

// TestBuilds copies the code of contrib, and the examples of packages that need no other test, to a module that is not
// the project's, and compiles both.
func TestBuilds(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles")
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, text []byte) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(path string) []byte {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	files := 0
	for _, name := range contrib {
		for _, path := range glob(t, root, "contrib", name, "*.go") {
			if !strings.HasSuffix(path, "_test.go") {
				files++
				write(filepath.Join("contrib", name, filepath.Base(path)), []byte(strings.ReplaceAll(string(read(path)), project+"/contrib/", outside+"/contrib/")))
			}
		}
	}
	if files < 2*len(contrib)-1 {
		t.Errorf("only %d files of contrib", files)
	}
	examples := 0
	for _, path := range glob(t, root, "*", "example*_test.go") {
		if filepath.Base(filepath.Dir(path)) == "headgated" { // a module of its own
			continue
		}
		examples++
		write(filepath.Join("examples", filepath.Base(filepath.Dir(path)), filepath.Base(path)), read(path))
	}
	if examples < 3 {
		t.Errorf("only %d examples", examples)
	}
	// The requirements are those of the tests and of contrib, without what is copied.
	own := regexp.MustCompile(`(?m)^.*` + project + `/contrib/.*\n`)
	mod := own.ReplaceAllString(string(read(filepath.Join(root, "test", "go.mod"))), "")
	mod = strings.Replace(mod, "module "+project+"/test", "module "+outside, 1)
	mod = strings.Replace(mod, project+" => ..", project+" => "+root, 1)
	sum := string(read(filepath.Join(root, "test", "go.sum")))
	required := regexp.MustCompile(`(?m)^(require )?\t?([^\s/]+\.[^\s/]+/\S+) (v\S+)`)
	for _, name := range contrib {
		for _, line := range required.FindAllStringSubmatch(string(read(filepath.Join(root, "contrib", name, "go.mod"))), -1) {
			if !strings.HasPrefix(line[2], project) {
				mod += "\nrequire " + line[2] + " " + line[3] + "\n"
			}
		}
		sum += string(read(filepath.Join(root, "contrib", name, "go.sum")))
	}
	write("go.mod", []byte(mod))
	write("go.sum", []byte(sum))
	cmd := exec.CommandContext(t.Context(), "go", "vet", "-mod=mod", "./...") // which compiles tests, too
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func glob(t *testing.T, parts ...string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
