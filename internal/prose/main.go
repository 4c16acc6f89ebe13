// Prose writes the comments of packages and of exported names as Markdown, for the linter of prose:
//
//	go run ./internal/prose
//
// The folder .bin/prose then has two files for each package: packages/PATH.md has the comment of the
// package, and names/PATH.md the comments of its exported names.
package main

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// dir is where the comments are written.
const dir = ".bin/prose"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

// run writes the comments of all packages below the current folder.
func run() error {
	return filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case d.Name() == "testdata" || len(path) > 1 && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		}
		return write(path)
	})
}

// write writes the comments of the package in a folder, if there is one.
func write(path string) error {
	names, err := filepath.Glob(filepath.Join(path, "*.go"))
	if err != nil {
		return err
	}
	files := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, name, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		parsed = append(parsed, file)
	}
	if len(parsed) == 0 {
		return nil
	}
	p, err := doc.NewFromFiles(files, parsed, path)
	if err != nil {
		return err
	}
	name := strings.ReplaceAll(filepath.ToSlash(path), "/", "_") + ".md"
	if err := save(filepath.Join(dir, "packages", name), p, p.Doc); err != nil {
		return err
	}
	return save(filepath.Join(dir, "names", name), p, comments(p)...)
}

// comments returns the comments of the exported names.
func comments(p *doc.Package) (texts []string) {
	values := func(vs []*doc.Value) {
		for _, v := range vs {
			texts = append(texts, v.Doc)
			for _, spec := range v.Decl.Specs {
				if s, ok := spec.(*ast.ValueSpec); ok {
					texts = append(texts, s.Doc.Text(), s.Comment.Text())
				}
			}
		}
	}
	funcs := func(fs []*doc.Func) {
		for _, f := range fs {
			texts = append(texts, f.Doc)
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs(p.Funcs)
	for _, t := range p.Types {
		texts = append(texts, t.Doc)
		values(t.Consts)
		values(t.Vars)
		funcs(t.Funcs)
		funcs(t.Methods)
		ast.Inspect(t.Decl, func(n ast.Node) bool {
			if f, ok := n.(*ast.Field); ok && (len(f.Names) == 0 || f.Names[0].IsExported()) {
				texts = append(texts, f.Doc.Text(), f.Comment.Text())
			}
			return true
		})
	}
	return texts
}

// save writes comments as Markdown.
func save(name string, p *doc.Package, texts ...string) error {
	var out []byte
	for _, text := range texts {
		d := p.Parser().Parse(text)
		for _, block := range d.Content {
			if _, ok := block.(*comment.Code); !ok {
				out = append(append(out, p.Printer().Markdown(&comment.Doc{Content: []comment.Block{block}})...), '\n')
			}
		}
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return err
	}
	return os.WriteFile(name, out, 0o600)
}
