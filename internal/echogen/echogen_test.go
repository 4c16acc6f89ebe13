package echogen_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/headgate/headgate/internal/echogen"
)

// Package echov5mw is what go generate writes.
func TestPackageIsWritten(t *testing.T) {
	files, err := echogen.Files("../..")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("../../echov5mw", name))
		if err != nil || string(got) != want {
			t.Errorf("echov5mw/%s is not what go generate ./echomw writes: %v", name, err)
		}
	}
}
