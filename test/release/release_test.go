// Package release tests scripts/release.
package release

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A release can be had by go get, each module in an empty one, and what imports it finds all that it needs. It is the
// code that the other tests build.
func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a module cache of its own")
	}
	const version = "v0.1.0"
	clone := copyOfRepository(t)
	tags := func() string { return strings.Join(strings.Fields(run(t, clone, nil, "git", "tag")), " ") }

	for _, test := range []struct{ version, check, unfinished, want string }{
		{"0.1.0", "true", "", "usage:"}, {"v0.1", "true", "", "usage:"}, {"v2.0.0", "true", "", "major version"},
		{version, "true", "unfinished", "not committed"}, {version, "false", "", "not green"},
		{"v0.0.9", "true", "", "CHANGELOG.md has no section"},
	} {
		if test.unfinished != "" {
			write(t, filepath.Join(clone, test.unfinished), "")
		}
		out, err := release(clone, test.version, test.check)
		if test.unfinished != "" {
			_ = os.Remove(filepath.Join(clone, test.unfinished))
		}
		if changes := run(t, clone, nil, "git", "status", "--porcelain"); err == nil || !strings.Contains(out, test.want) || tags() != "" || changes != "" {
			t.Fatalf("%+v: %v, %s; tags %q, changes %q", test, err, out, tags(), changes)
		}
	}
	out, err := release(clone, version, "true")
	if err != nil || !strings.Contains(out, "git push --atomic origin HEAD v0.1.0 "+strings.Join(beside, "/v0.1.0 ")+"/v0.1.0\n") {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := release(clone, version, "true"); err == nil || !strings.Contains(out, "there is a tag") {
		t.Fatalf("a second time: %v\n%s", err, out)
	}

	proxy := t.TempDir()
	imports := map[string]string{"": "nethttp"}
	for _, dir := range beside {
		imports[dir] = dir
	}
	for dir := range imports {
		publish(t, clone, proxy, dir, version)
	}
	environment := []string{
		"GOPROXY=file://" + filepath.ToSlash(proxy) + ",file://" + goEnv(t, "GOMODCACHE") + "/cache/download," + goEnv(t, "GOPROXY"),
		"GOMODCACHE=" + t.TempDir(), "GOFLAGS=-modcacherw", "GOSUMDB=off", "GOWORK=off",
	}
	for dir, pkg := range imports {
		app := t.TempDir()
		run(t, app, environment, "go", "mod", "init", "example.com/app")
		run(t, app, environment, "go", "get", strings.TrimSuffix(module+"/"+dir, "/"))
		write(t, filepath.Join(app, "main.go"), fmt.Sprintf("package main\n\nimport _ %q\n\nfunc main() {}\n", module+"/"+pkg))
		run(t, app, environment, "go", "list", "-deps", ".")
		if got := run(t, app, environment, "go", "list", "-m", module); !strings.Contains(got, version) {
			t.Errorf("%q needs %s", dir, got)
		}
	}
}

// repository is the root of the repository.
const repository = "../.."

const module = "github.com/headgate/headgate"

// beside are the modules that ship beside the main one.
var beside = []string{
	"contrib/rpc", "contrib/promheadgate", "contrib/otelheadgate", "contrib/echov5mw", "contrib/grpcmw", "contrib/connectmw", "headgated",
}

func release(clone, version, check string) (output string, err error) {
	c := exec.Command(filepath.Join(clone, "scripts", "release"), version)
	c.Env = append(os.Environ(), "CHECK="+check)
	out, err := c.CombinedOutput()
	return string(out), err
}

// copyOfRepository returns a repository with one commit: the files as they are.
func copyOfRepository(t *testing.T) string {
	t.Helper()
	clone := t.TempDir()
	for name := range strings.SplitSeq(run(t, repository, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "\x00") {
		text, err := os.ReadFile(filepath.Join(repository, name))
		if name == "" || os.IsNotExist(err) { // deleted, and not yet committed
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(repository, name))
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(clone, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	run(t, clone, nil, "git", "init", "--quiet")
	run(t, clone, nil, "git", "config", "user.name", "test")
	run(t, clone, nil, "git", "config", "user.email", "test@example.com")
	run(t, clone, nil, "git", "add", "--all")
	run(t, clone, nil, "git", "commit", "--quiet", "--message", "all")
	return clone
}

// publish puts a module into a file proxy, as its tag has it, without the modules within it.
func publish(t *testing.T, clone, proxy, dir, version string) {
	t.Helper()
	path, tag := strings.TrimSuffix(module+"/"+dir, "/"), strings.TrimPrefix(dir+"/"+version, "/")
	at := filepath.Join(proxy, filepath.FromSlash(path), "@v")
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(at, "list"), version+"\n")
	write(t, filepath.Join(at, version+".info"), `{"Version":"`+version+`","Time":"2026-01-02T15:04:05Z"}`)
	write(t, filepath.Join(at, version+".mod"), run(t, clone, nil, "git", "show", tag+":"+strings.TrimPrefix(dir+"/go.mod", "/")))
	archive := []string{"archive", "--format", "zip", "--prefix", path + "@" + version + "/", "--output", filepath.Join(at, version+".zip"), tag + ":" + dir, "."}
	for name := range strings.FieldsSeq(run(t, clone, nil, "git", "ls-tree", "-r", "--name-only", tag+":"+dir)) {
		if within, ok := strings.CutSuffix(name, "/go.mod"); ok {
			archive = append(archive, ":(exclude)"+within)
		}
	}
	run(t, clone, nil, "git", archive...)
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(run(t, ".", nil, "go", "env", name))
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run returns what a program prints to its standard output.
func run(t *testing.T, dir string, environment []string, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), environment...)
	var out, faults strings.Builder
	c.Stdout, c.Stderr = &out, &faults
	if err := c.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, faults.String())
	}
	return out.String()
}
