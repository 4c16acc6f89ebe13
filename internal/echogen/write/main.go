// Command write writes package echov5mw from package echomw, in whose folder it is run.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/headgate/headgate/internal/echogen"
)

func main() {
	if err := write(".."); err != nil {
		fmt.Fprintln(os.Stderr, "echogen:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	files, err := echogen.Files(root)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, "echov5mw", name), []byte(text), 0o644); err != nil { //nolint:gosec // source
			return err
		}
	}
	return nil
}
