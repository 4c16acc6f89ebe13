package headgated

import (
	"os"
	"path/filepath"
	"testing"
)

// A socket that is closed twice does not remove that of its successor, whose file may have the same number.
func TestSocketClosedTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	one, err := listenUnix(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	one.Close()
	if _, err := os.Lstat(path); err == nil {
		t.Error("its file stays")
	}
	two, err := listenUnix(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close()
	one.(*socket).info = two.(*socket).info // as of a file system that gives the number to another file at once
	one.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Error("the file of the other is gone:", err)
	}
}
