package canary

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
)

// packages are those whose exported types the tests print.
var packages = []string{"core", "core/redisstore", "core/stats", "limits", "limits/redisdoc", "keyfuncs", "nethttp", "outgoing", "websocketmw"}

// unprinted are exported structs that the tests need not print, and why.
var unprinted = map[string]string{
	"core.Policy": "numbers", "core.Observer": "functions", "nethttp.Outcome": "numbers",
}

// seen are the types of what was printed, and of what was in that.
var seen sync.Map

func see(t reflect.Type) {
	if t == nil {
		return
	}
	if t.Name() != "" {
		name, _, _ := strings.Cut(t.String(), "[")
		if _, known := seen.LoadOrStore(name, true); known {
			return
		}
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		see(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() {
				see(f.Type)
			}
		}
	}
}

var skipped bool

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && !skipped && flag.Lookup("test.run").Value.String() == "" {
		for _, name := range missing() {
			fmt.Printf("%s is not printed by any test: print one, or say in unprinted why not\n", name)
			code = 1
		}
	}
	os.Exit(code)
}

// missing returns the exported structs of which none was printed.
func missing() (names []string) {
	for _, dir := range packages {
		files, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
		if err != nil || len(files) == 0 {
			panic(fmt.Sprint(dir, " has no files: ", err))
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				panic(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.IsExported() {
					name := filepath.Base(dir) + "." + spec.Name.Name
					_, isStruct := spec.Type.(*ast.StructType)
					if _, printed := seen.Load(name); isStruct && !printed && unprinted[name] == "" {
						names = append(names, name)
					}
				}
				return true
			})
		}
	}
	return names
}
