// Portable checks that all packages and their tests are valid for Windows with 32 bits:
//
//	go run ./internal/portable
//
// It checks types from the sources, down to the standard library, and compiles nothing: a compiler takes ten times as long.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run("windows", "386"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A listed package is what go list prints of it.
type listed struct {
	ImportPath string            `json:"ImportPath"`
	Dir        string            `json:"Dir"`
	ForTest    string            `json:"ForTest"`
	GoFiles    []string          `json:"GoFiles"`
	ImportMap  map[string]string `json:"ImportMap"`
	DepOnly    bool              `json:"DepOnly"`
	Error      *struct {
		Err string `json:"Err"`
	} `json:"Error"`
}

// run checks the packages below the current folder, for a system.
func run(system, arch string) error {
	const fields = "-json=ImportPath,Dir,ForTest,GoFiles,ImportMap,DepOnly,Error"
	list := exec.CommandContext(context.Background(), "go", "list", "-e", "-deps", "-test", fields, "./...")
	list.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		return err
	}
	if err := list.Start(); err != nil {
		return err
	}
	c := &checker{files: token.NewFileSet(), checked: map[string]*types.Package{"unsafe": types.Unsafe}, sizes: types.SizesFor("gc", arch)}
	var faults []error
	for packages := json.NewDecoder(out); ; { // each comes after those that it imports
		var p listed
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if p.Error != nil {
			faults = append(faults, fmt.Errorf("%s: %s", p.ImportPath, p.Error.Err))
		} else if !strings.HasSuffix(p.ImportPath, ".test") && p.ImportPath != "unsafe" { // what runs the tests is generated
			faults = append(faults, c.check(&p)...)
		}
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	faults = slices.CompactFunc(faults, func(a, b error) bool { return a.Error() == b.Error() }) // of a package, and again of its tests
	return errors.Join(append(faults, list.Wait())...)
}

// A checker checks packages, of which it has the imports.
type checker struct {
	files   *token.FileSet
	checked map[string]*types.Package // by the paths that go list prints
	sizes   types.Sizes
}

// check checks a package. Those of others are checked without the bodies of functions.
func (c *checker) check(p *listed) (faults []error) {
	mode := parser.SkipObjectResolution
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.Dir, name)
		}
		file, err := parser.ParseFile(c.files, name, nil, mode)
		if err != nil {
			return []error{err}
		}
		parsed = append(parsed, file)
	}
	config := types.Config{
		Importer: imports{c.checked, p.ImportMap}, Sizes: c.sizes, FakeImportC: true, IgnoreFuncBodies: p.DepOnly && p.ForTest == "",
		Error: func(err error) {
			if !p.DepOnly {
				faults = append(faults, err)
			}
		},
	}
	path, _, _ := strings.Cut(p.ImportPath, " [") // a package for the test of another
	c.checked[p.ImportPath], _ = config.Check(path, c.files, parsed, nil)
	return faults
}

// An imports has packages that were checked before, under the names that one package has for them.
type imports struct {
	checked map[string]*types.Package
	names   map[string]string
}

// Import implements [types.Importer].
func (i imports) Import(path string) (*types.Package, error) {
	if name := i.names[path]; name != "" {
		path = name
	}
	if p := i.checked[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s was not listed before", path)
}
