// Package repotest holds tests of the repository itself: which package may import
// which, that the programs in the documents are programs that compile, their links lead
// somewhere and their commands find tests, and rules of the code that no linter knows.
package repotest

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// repository is the root of the repository; package tests run in their folder.
const repository = "../.."

const module = "github.com/headgate/headgate"

// A source is a parsed Go file.
type source struct {
	path string // from the root, with slashes
	test bool
	set  *token.FileSet
	file *ast.File
}

// dir is the package's folder, as it stands in an import path after the module.
func (s source) dir() string { return path.Dir(s.path) }

func (s source) position(n ast.Node) string {
	return s.path + ":" + strconv.Itoa(s.set.Position(n.Pos()).Line)
}

// imports returns the local name of each imported package by path. The name is
// empty unless it was given or is the last element of the path.
func (s source) imports() map[string]string {
	names := make(map[string]string)
	for _, i := range s.file.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		names[p] = path.Base(p)
		if i.Name != nil {
			names[p] = i.Name.Name
		}
	}
	return names
}

// calls returns the calls of the named function of the package with that path.
func (s source) calls(pkg, function string) []*ast.CallExpr {
	local, ok := s.imports()[pkg]
	if !ok {
		return nil
	}
	var calls []*ast.CallExpr
	ast.Inspect(s.file, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			if f, ok := c.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == function {
				if x, ok := f.X.(*ast.Ident); ok && x.Name == local {
					calls = append(calls, c)
				}
			}
		}
		return true
	})
	return calls
}

// sources parses the Go files of the root module, whatever their build tags, and
// with nested, those of the modules inside it.
func sources(t *testing.T, nested bool) []source {
	t.Helper()
	set := token.NewFileSet()
	var all []source
	root := os.DirFS(repository)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name == "." {
				return nil
			}
			base := path.Base(name)
			if base[0] == '.' || base[0] == '_' || base == "testdata" {
				return fs.SkipDir
			}
			if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil && !nested {
				return fs.SkipDir
			} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		case path.Ext(name) != ".go":
			return nil
		}
		f, err := parser.ParseFile(set, filepath.Join(repository, name), nil, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{path: name, test: strings.HasSuffix(name, "_test.go"), set: set, file: f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
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
