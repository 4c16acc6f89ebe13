// Package echogen writes package echov5mw from package echomw. What differs between the versions of
// Echo is by hand, in the files that are named in byHand.
package echogen

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// byHand are the files of both packages that are not written.
var byHand = []string{"doc.go", "response.go", "response_test.go", "example_readme_test.go"} //nolint:gochecknoglobals // never assigned

const notice = "// Code generated from package echomw by go generate ./echomw; DO NOT EDIT.\n\n"

// Files returns the files of package echov5mw by their names. The root is the repository's.
func Files(root string) (map[string]string, error) {
	sources, err := filepath.Glob(filepath.Join(root, "echomw", "*.go"))
	if err != nil {
		return nil, err
	}
	files := make(map[string]string)
	for _, path := range sources {
		name := filepath.Base(path)
		if slices.Contains(byHand, name) {
			continue
		}
		text, err := os.ReadFile(path) //nolint:gosec // a file of the repository
		if err != nil {
			return nil, err
		}
		files[strings.Replace(name, "echomw", "echov5mw", 1)] = notice + translate(string(text))
	}
	return files, nil
}

// translate returns a file for Echo v5.
func translate(text string) string {
	text = strings.TrimPrefix(text, "//go:generate go run ../internal/echogen/write\n\n")
	return strings.NewReplacer(
		"echomw", "echov5mw",
		"github.com/labstack/echo/v4", "github.com/labstack/echo/v5",
		"(err error, c echo.Context)", "(c *echo.Context, err error)",
		"(err error, _ echo.Context)", "(_ *echo.Context, err error)",
		"echo.Context", "*echo.Context",
	).Replace(text)
}
