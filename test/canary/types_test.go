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
var packages = []string{
	"core", "core/store", "core/step", "core/memstore", "core/redisstore", "core/lease", "core/stats", "core/debug", "limits", "limits/redisdoc",
	"keyfuncs", "nethttp", "websocketmw", "adapter",
}

// unprinted are exported structs that the tests need not print, and why.
var unprinted = map[string]string{
	"core.ConfigError": "has what the program has configured", "core.TextError": "has the text of a policy",
	"nethttp.ConfigError":     "has what the program has configured",
	"websocketmw.ConfigError": "has what the program has configured",
	"core.Rate":               "numbers", "core.Policy": "numbers", "keyfuncs.Prefix": "numbers", "nethttp.Outcome": "numbers",
	"debug.Config": "functions", "debug.Limits": "has what the program has configured",
	"debug.Report": "the page and its JSON are looked at", "debug.Process": "the same",
	"debug.ReportedLimits": "the same", "debug.ReportedLimiter": "the same", "debug.ReportedPolicy": "the same",
	"limits.Document": "TestDocuments prints it, but for its JSON",
	"step.Cell":       "numbers", "step.Variant": "numbers", "step.Level": "numbers", "step.Numbers": "numbers", "step.Reading": "numbers",
	"store.Answer": "has what the program answers", "store.Place": "an address", "store.Listeners": "functions", "store.Observer": "functions", "adapter.Framework": "functions",
	"adapter.Visit":    "has the request of the program, as it is",
	"adapter.Recorder": "has the writer of the program, as it is",
	"store.Policy":     "has what the program has configured", "store.Spec": "has what the program has configured",
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
