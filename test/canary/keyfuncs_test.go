package canary

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each key function is in the list of this package, in the package's documentation, and on the page about keys.
func TestEveryKeyFunctionIsListed(t *testing.T) {
	const dir = "../../keyfuncs/"
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	documentation, page := read(dir+"doc.go"), read("../../docs/keys.md")
	listed := keyFunctions(t)
	names := exportedKeyFunctions(t, dir)
	for _, name := range names {
		if listed[name] == nil {
			t.Errorf("keyFunctions of packages_test.go lacks %s", name)
		}
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(documentation) {
			t.Errorf("%sdoc.go lacks %s", dir, name)
		}
		if !regexp.MustCompile("(\\.|`|\\b)" + name + "\\(|\\." + name + "\\b").MatchString(page) {
			t.Errorf("docs/keys.md lacks %s", name)
		}
	}
	if len(names) != len(listed) {
		t.Errorf("%d key functions are exported, %d are listed", len(names), len(listed))
	}
}

// exportedKeyFunctions returns the names of functions and methods that return a Func, and of methods that are one.
func exportedKeyFunctions(t *testing.T, dir string) (names []string) {
	files, err := filepath.Glob(dir + "*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Name.IsExported() && (returnsFunc(f) || isFunc(f)) {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

func returnsFunc(f *ast.FuncDecl) bool {
	if f.Type.Results.NumFields() != 1 {
		return false
	}
	result, ok := f.Type.Results.List[0].Type.(*ast.Ident)
	return ok && result.Name == "Func"
}

// isFunc reports whether a method takes a request and returns a text and an error.
func isFunc(f *ast.FuncDecl) bool {
	if f.Recv == nil || f.Type.Params.NumFields() != 1 || f.Type.Results.NumFields() != 2 {
		return false
	}
	_, takesPointer := f.Type.Params.List[0].Type.(*ast.StarExpr)
	text, ok := f.Type.Results.List[0].Type.(*ast.Ident)
	return takesPointer && ok && text.Name == "string"
}
