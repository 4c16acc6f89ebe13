package repotest

import (
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// unlike are exported names that have a word which the glossary avoids, and why.
var unlike = map[string]string{
	"core.Policy.CountDenied":       "the word of users for attempts that are refused: count-denied in texts",
	"core.Policy.CountsDenied":      "as CountDenied",
	"core/step.Numbers.CountDenied": "as CountDenied",
	"core/step.Step.CountsDenied":   "as CountDenied",
	"core/step.Numbers":             "the parameters in Go, which are numbers",
	"core/step.Step.Numbers":        "as the type",
	"grpcmw.TLSSubject":             "the word of X.509",
	"connectmw.TLSSubject":          "the word of X.509",
}

// The glossary of ARCHITECTURE.md has one word for each thing: no exported name has another.
func TestNamesKeepToTheGlossary(t *testing.T) {
	avoided := glossary(t)
	left := maps.Clone(unlike)
	for _, s := range sources(t, true) {
		if s.test || strings.Contains("/"+s.dir()+"/", "/internal/") || strings.HasPrefix(s.dir(), "examples") || strings.HasPrefix(s.dir(), "benchmarks") {
			continue
		}
		for _, name := range exported(s.file) {
			full := s.dir() + "." + name
			for other, word := range avoided {
				if !hasWord(name[strings.IndexByte(name, '.')+1:], other) {
					continue
				}
				if delete(left, full); unlike[full] == "" {
					t.Errorf("%s: %s says %q for what the glossary calls %q", s.path, full, other, word)
				}
			}
		}
	}
	for name := range left {
		t.Errorf("%s is not there, or keeps to the glossary: remove it from unlike", name)
	}
}

// glossary returns what things are not called, and what instead.
func glossary(t *testing.T) (avoided map[string]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "| word | meaning | not called |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if !found {
		t.Fatal("ARCHITECTURE.md has no glossary")
	}
	avoided = make(map[string]string)
	var words []string
	for row := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		if len(cells) != 3 {
			t.Fatalf("the glossary has a row of %d cells: %s", len(cells), row)
		}
		word := strings.TrimSpace(cells[0])
		if slices.Contains(words, word) {
			t.Errorf("the glossary has %q twice", word)
		}
		words = append(words, word)
		for other := range strings.SplitSeq(cells[2], ",") {
			if other = strings.Trim(other, " `"); other != "" {
				avoided[other] = word
			}
		}
	}
	for _, word := range words {
		if other := avoided[word]; other != "" {
			t.Errorf("the glossary has %q, and avoids it for %q", word, other)
		}
	}
	return avoided
}

// exported returns the names that a file exports: with Type. before those of fields and methods.
func exported(f *ast.File) (names []string) {
	add := func(of string, all ...*ast.Ident) {
		for _, name := range all {
			if name.IsExported() {
				names = append(names, of+name.Name)
			}
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			of := ""
			if d.Recv != nil {
				if of = receiver(d) + "."; !ast.IsExported(of) {
					continue
				}
			}
			add(of, d.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					add("", spec.Names...)
				case *ast.TypeSpec:
					if add("", spec.Name); !spec.Name.IsExported() {
						continue
					}
					for _, field := range fields(spec.Type) {
						add(spec.Name.Name+".", field.Names...)
					}
				}
			}
		}
	}
	return names
}

// receiver returns the name of the type that has a method.
func receiver(d *ast.FuncDecl) (name string) {
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		if i, ok := n.(*ast.Ident); ok && name == "" {
			name = i.Name
		}
		return name == ""
	})
	return name
}

// fields returns the fields of a struct, or the methods of an interface.
func fields(of ast.Expr) []*ast.Field {
	switch of := of.(type) {
	case *ast.StructType:
		return of.Fields.List
	case *ast.InterfaceType:
		return of.Methods.List
	}
	return nil
}

// hasWord reports whether a name has one or several words, also in the plural.
func hasWord(name, words string) bool {
	var b strings.Builder
	letters := []rune(name)
	for i, r := range letters {
		begins := unicode.IsUpper(r) && (i == 0 || !unicode.IsUpper(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1]))
		if begins || !unicode.IsLetter(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	all := b.String() + " "
	return strings.Contains(all, " "+words+" ") || strings.Contains(all, " "+words+"s ")
}

func TestHasWord(t *testing.T) {
	for name, want := range map[string]bool{
		"GiveBack": true, "GiveBacks": true, "HTTPGiveBack": true, "GiveBackAll": true,
		"Give": false, "ForgiveBack": false, "GiveBackend": false,
	} {
		if got := hasWord(name, "give back"); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
