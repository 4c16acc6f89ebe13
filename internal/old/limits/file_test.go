package limits_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/core/memstore"
	"github.com/headgate/headgate/internal/old/limits"
	"github.com/headgate/headgate/internal/redistest/proctest"
)

func TestMain(m *testing.M) {
	proctest.Main(m, proctest.Funcs{"replace": replace, "server": server})
}

// write replaces a file as one should.
func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

// A ConfigMap that Kubernetes mounts: the file is a link to a link to a folder, which is
// renamed.
func TestSymbolicLinksAreSwapped(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need a privilege there")
	}
	dir := t.TempDir()
	modified := time.Now().Truncate(time.Second)
	swap := func(version int) {
		t.Helper()
		data := fmt.Sprintf("..version_%d", version)
		name := filepath.Join(dir, data, "limits.json")
		err := errors.Join(
			os.Mkdir(filepath.Join(dir, data), 0o700),
			os.WriteFile(name, []byte(free(fmt.Sprintf(`"sliding-log %d/minute"`, version))), 0o600),
			os.Chtimes(name, modified, modified), // all in one second, and of one length
			os.Symlink(data, filepath.Join(dir, "..data_tmp")),
			os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		if err != nil {
			t.Fatal(err)
		}
	}
	swap(1)
	if err := os.Symlink(filepath.Join("..data", "limits.json"), filepath.Join(dir, "limits.json")); err != nil {
		t.Fatal(err)
	}
	b := open(t, limits.File(filepath.Join(dir, "limits.json")), limits.Config{Every: 10 * time.Millisecond})
	api := limit(t, b, "api")
	for version := 2; version < 10; version++ {
		swap(version)
		want := fmt.Sprintf("api: sliding-log %d/minute", version)
		for text(api.For("", "k")) != want {
			if err := b.State().Err; err != nil {
				t.Fatal(err)
			}
			runtime.Gosched()
		}
		if err := os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..version_%d", version-1))); err != nil {
			t.Fatal(err)
		}
	}
}

// What is no document leaves the limits as they are, and is told.
func TestFileThatIsNoDocument(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits.json")
	whole := free(`"sliding-log 1/minute"`)
	write(t, name, whole)
	b := open(t, limits.File(name), limits.Config{Every: time.Hour})
	api := limit(t, b, "api")
	before := api.For("", "k")
	fails := func(want string) {
		t.Helper()
		err := b.Reload(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
		if s := b.State(); s.Err == nil || api.For("", "k") != before {
			t.Errorf("%+v", s)
		}
	}
	for i := range whole {
		write(t, name, whole[:i])
		if i == 0 {
			fails("the document is empty")
			continue
		}
		fails("the document ends before it is whole")
	}
	write(t, name, whole)
	reload(t, b)

	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if fails("no such file"); !errors.Is(b.State().Err, fs.ErrNotExist) {
		t.Error(b.State().Err)
	}
	if err := os.Mkdir(name, 0o700); err != nil {
		t.Fatal(err)
	}
	fails("is not a regular file")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	write(t, name, "")
	if err := os.Truncate(name, 100<<20); err != nil {
		t.Fatal(err)
	}
	fails("has 104857600 bytes, more than 16777216")
	write(t, name, whole)
	reload(t, b)
	if b.State().Err != nil || api.For("", "k") != before {
		t.Errorf("%+v", b.State())
	}
}

// A file that is written in place, in parts, is read when it is whole.
func TestFileInTheMiddleOfAWrite(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits.json")
	one, two := free(`"sliding-log 1/minute"`), free(`"sliding-log 2/minute"`)
	bubble.Test(t, func(t *testing.T) {
		write(t, name, one)
		source := limits.File(name)
		load := func() string {
			text, err := source.Load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		if load() != one {
			t.Fatal("another text")
		}
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		go func() {
			for i := range 10 { // there is something else every 30 ms
				if _, err := f.WriteAt([]byte(two[i*len(two)/10:(i+1)*len(two)/10]), int64(i*len(two)/10)); err != nil {
					t.Error(err)
				}
				if err := f.Truncate(int64((i + 1) * len(two) / 10)); err != nil {
					t.Error(err)
				}
				time.Sleep(30 * time.Millisecond)
			}
		}()
		synctest.Wait()
		if got := load(); got != two {
			t.Errorf("%q was read", got)
		}
		go func() {
			for i := range 100 {
				write(t, name, strings.Repeat(" ", i))
				time.Sleep(30 * time.Millisecond)
			}
		}()
		synctest.Wait()
		if _, err := source.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "the text changes all the time") {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		write(t, name, one)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := source.Load(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// replace replaces a file again and again, and is killed meanwhile.
func replace(args []string) error {
	fmt.Println("ready")
	for i := 1; ; i++ {
		text := free(fmt.Sprintf(`"sliding-log %d/minute"`, i%1000+1))
		f, err := os.Create(args[0] + ".new")
		if err != nil {
			return err
		}
		w := bufio.NewWriterSize(f, 16)
		if _, err := w.WriteString(text); err != nil {
			return err
		}
		if err := errors.Join(w.Flush(), f.Close(), os.Rename(args[0]+".new", args[0])); err != nil {
			return err
		}
	}
}

// Whenever a writer is killed, the document is the old or the new one.
func TestWriterIsKilled(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits.json")
	write(t, name, free(`"sliding-log 1/minute"`))
	b := open(t, limits.File(name), limits.Config{Every: time.Hour})
	api := limit(t, b, "api")
	for range 10 {
		p := proctest.Start(t, "replace", name)
		p.Line()
		changes, last := 0, ""
		for changes < 20 {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if string(text) != last {
				changes++
				last = string(text)
			}
		}
		p.Kill()
		<-p.Exited()
		reload(t, b)
		if n := api.For("", "k").Policies()[0].Limit(); n < 1 || n > 1000 {
			t.Errorf("the limit is %d", n)
		}
	}
}

// The errors of sources, of a book and of its documents name the project once.
func TestErrorsHaveOnePrefix(t *testing.T) {
	dir := t.TempDir()
	wrong := filepath.Join(dir, "wrong.json")
	if err := os.WriteFile(wrong, []byte(`{"limits": {"api": {}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]limits.Source{
		"no file":     limits.File(filepath.Join(dir, "none.json")),
		"a directory": limits.File(dir),
		"a document":  limits.File(wrong),
		"a function":  limits.SourceFunc(func(context.Context) ([]byte, error) { return nil, errors.New("broken") }),
		"no source":   nil,
	} {
		_, err := limits.Open(t.Context(), memstore.New(memstore.Config{}), false, source, limits.Config{})
		if err == nil || strings.Count(err.Error(), "headgate: ") != 1 || strings.Count(err.Error(), "limits: ") != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The faults of a file have its name.
func TestFaultsOfFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.json")
	if err := os.WriteFile(path, []byte(`{"limits": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := limits.Open(t.Context(), memstore.New(memstore.Config{}), false, limits.File(path), limits.Config{})
	var faults limits.Faults
	if err == nil || !strings.Contains(err.Error(), path+": line 1, column 12: limits") || !errors.As(err, &faults) {
		t.Errorf("%v", err)
	}
}
