package repotest

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// A room is a package, and what it may import besides the standard library. Its
// tests may import all packages of ours, and the modules of forTests.
type room struct {
	pkg    string
	ours   []string // packages of this module
	theirs []string // modules of others
}

// house is the architecture. ARCHITECTURE.md has a table of it, and links here.
var house = []room{
	{pkg: "cmd/headgate", ours: []string{"core", "core/redisstore", "internal/docstore", "internal/document", "internal/redisurl", "limits"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "core", ours: []string{"internal/backend", "internal/hidden", "internal/memory", "internal/slots", "internal/step", "internal/store"}},
	{pkg: "core/redisstore", ours: []string{"core", "internal/backend", "internal/lease", "internal/outage", "internal/rediskey", "internal/redisrates", "internal/redisslots", "internal/redisurl", "internal/slots/keeper", "internal/store"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "core/stats", ours: []string{"core", "internal/backend", "internal/step", "internal/store"}},
	{pkg: "echomw", ours: []string{"keyfuncs", "nethttp"}, theirs: []string{"github.com/labstack/echo/v4"}},
	{pkg: "ginmw", ours: []string{"keyfuncs", "nethttp"}, theirs: []string{"github.com/gin-gonic/gin"}},
	{pkg: "internal/backend", ours: []string{"internal/ctxmark", "internal/hidden", "internal/lease", "internal/memory", "internal/plans", "internal/slots", "internal/step", "internal/store"}},
	{pkg: "internal/bubble"},
	{pkg: "internal/ctxmark"},
	{pkg: "internal/docstore", ours: []string{"internal/document"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "internal/document", ours: []string{"internal/backend", "internal/plans", "internal/step", "internal/yamltree"}, theirs: []string{"go.yaml.in/yaml/v4"}},
	{pkg: "internal/engine", ours: []string{"core", "internal/backend", "internal/fault", "internal/step", "keyfuncs"}},
	{pkg: "internal/exampletest", ours: []string{"core/redisstore", "internal/redistest", "internal/redistest/proctest", "keyfuncs", "websocketmw"}, theirs: []string{"github.com/gorilla/websocket"}},
	{pkg: "internal/fault"},
	{pkg: "internal/guardtest", ours: []string{"core", "keyfuncs", "nethttp"}},
	{pkg: "internal/hidden"},
	{pkg: "internal/lease", ours: []string{"internal/ctxmark", "internal/hidden", "internal/step", "internal/store"}},
	{pkg: "internal/memory", ours: []string{"internal/step", "internal/store"}},
	{pkg: "internal/outage"},
	{pkg: "internal/pictures"},
	{pkg: "internal/plans"},
	{pkg: "internal/problem"},
	{pkg: "internal/record"},
	{pkg: "internal/rediskey"},
	{pkg: "internal/redisrates", ours: []string{"internal/ctxmark", "internal/hidden", "internal/memory", "internal/outage", "internal/rediskey", "internal/step", "internal/store"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "internal/redisslots", ours: []string{"internal/rediskey", "internal/slots", "internal/slots/keeper", "internal/store"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "internal/redistest", ours: []string{"internal/redistest/proctest"}},
	{pkg: "internal/redistest/proctest"},
	{pkg: "internal/redisurl", theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "internal/repotest"},
	{pkg: "internal/slots", ours: []string{"internal/hidden", "internal/outage", "internal/step"}},
	{pkg: "internal/slots/keeper", ours: []string{"internal/outage", "internal/slots", "internal/step"}},
	{pkg: "internal/steady", ours: []string{"internal/yamltree"}},
	{pkg: "internal/step", ours: []string{"internal/hidden"}},
	{pkg: "internal/store", ours: []string{"internal/hidden", "internal/outage", "internal/step"}},
	{pkg: "internal/storetest", ours: []string{"internal/step", "internal/store"}},
	{pkg: "internal/yamltree", theirs: []string{"go.yaml.in/yaml/v4"}},
	{pkg: "keyfuncs", ours: []string{"internal/fault"}},
	{pkg: "limits", ours: []string{"core", "internal/backend", "internal/document", "internal/plans", "internal/steady"}},
	{pkg: "limits/redisdoc", ours: []string{"core", "internal/docstore", "internal/document", "limits"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "nethttp", ours: []string{"core", "internal/backend", "internal/engine", "internal/problem", "internal/record", "keyfuncs"}},
	{pkg: "outgoing", ours: []string{"core", "internal/backend", "internal/step", "internal/store", "keyfuncs"}},
	{pkg: "websocketmw", ours: []string{"core", "internal/backend", "internal/engine", "internal/record", "internal/slots", "keyfuncs", "nethttp", "websocketmw/internal/frames"}},
	{pkg: "websocketmw/internal/frames"},
}

// forTests are the modules that only tests may import.
var forTests = []string{
	"github.com/alicebob/miniredis/v2",
	"github.com/gin-gonic/gin",
	"github.com/gorilla/websocket",
	"github.com/labstack/echo/v4",
	"github.com/dunglas/httpsfv", // a parser of structured fields that is not ours
	"github.com/redis/go-redis/v9",
	"golang.org/x/net/http2",
}

// A package under examples/ may import the packages of ours that users import, and
// what its subject needs: those modules are listed here.
var forExamples = []string{
	"github.com/alicebob/miniredis/v2",
	"github.com/gin-gonic/gin",
	"github.com/gorilla/websocket",
	"github.com/labstack/echo/v4",
	"github.com/redis/go-redis/v9",
	"go.yaml.in/yaml/v4",
}

func TestPackagesImportOnlyWhatTheHouseAllows(t *testing.T) {
	rooms := make(map[string]room)
	for _, r := range house {
		rooms[r.pkg] = r
	}
	used := make(map[string]bool)
	for _, s := range sources(t, false) {
		dir := s.dir()
		r, known := rooms[dir]
		example := strings.HasPrefix(dir, "examples/")
		if !known && !example {
			t.Errorf("%s: package %s is not in the table of packages in imports_test.go", s.path, dir)
			continue
		}
		used[dir] = true
		for p := range s.imports() {
			own, isOurs := strings.CutPrefix(p, module+"/")
			var ok bool
			switch {
			case isOurs && (example || s.test):
				ok = known || s.test || !strings.HasPrefix(own, "internal/")
			case isOurs:
				ok = slices.Contains(r.ours, own)
			case isStandard(p):
				ok = true
			case s.test && inModules(p, forTests):
				ok = true
			case example:
				ok = inModules(p, forExamples)
			default:
				ok = inModules(p, r.theirs)
			}
			if !ok {
				t.Errorf("%s imports %s: the table of packages in imports_test.go does not allow it", s.path, p)
			}
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(rooms)) {
		if !used[pkg] {
			t.Errorf("the table of packages lists %s, which does not exist", pkg)
		}
	}
}

// isStandard reports whether an import path is of the standard library: only
// others begin with the name of a host.
func isStandard(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".")
}

func inModules(p string, modules []string) bool {
	return slices.ContainsFunc(modules, func(m string) bool {
		return p == m || strings.HasPrefix(p, m+"/")
	})
}
