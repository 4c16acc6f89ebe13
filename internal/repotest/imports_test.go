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

// house is the architecture. ARCHITECTURE.md has a picture of it, and links here.
var house = []room{
	{pkg: "cmd/headgate", ours: []string{"internal/old/core", "internal/old/core/memstore", "internal/old/core/redisstore", "internal/old/limits", "internal/old/limits/redisdoc", "internal/old/limits/yamldoc", "internal/redisurl"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "core", ours: []string{"internal/backend", "internal/old/core", "internal/old/core/memstore", "internal/slots"}},
	{pkg: "core/redisstore", ours: []string{"core", "internal/backend", "internal/old/core/lease", "internal/old/core/redisstore", "internal/old/core/store", "internal/rediskey", "internal/redisslots", "internal/slots/keeper"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "core/stats", ours: []string{"core", "internal/backend", "internal/old/core/debug", "internal/old/core/memstore", "internal/old/core/stats"}},
	{pkg: "echomw", ours: []string{"keyfuncs", "nethttp"}, theirs: []string{"github.com/labstack/echo/v4"}},
	{pkg: "ginmw", ours: []string{"keyfuncs", "nethttp"}, theirs: []string{"github.com/gin-gonic/gin"}},
	{pkg: "internal/backend", ours: []string{"internal/old/core", "internal/old/core/memstore", "internal/old/core/store", "internal/ontrial", "internal/slots"}},
	{pkg: "internal/bubble"},
	{pkg: "internal/engine", ours: []string{"core", "internal/backend", "internal/fault", "keyfuncs"}},
	{pkg: "internal/exampletest", ours: []string{"core/redisstore", "internal/redistest", "internal/redistest/proctest", "keyfuncs", "websocketmw"}, theirs: []string{"github.com/gorilla/websocket"}},
	{pkg: "internal/fault"},
	{pkg: "internal/guardtest", ours: []string{"core", "keyfuncs", "nethttp"}},
	{pkg: "internal/hidden"},
	{pkg: "internal/keytext"},
	{pkg: "internal/ontrial"},
	{pkg: "internal/pictures"},
	{pkg: "internal/problem"},
	{pkg: "internal/record"},
	{pkg: "internal/rediskey"},
	{pkg: "internal/redisslots", ours: []string{"internal/rediskey", "internal/slots", "internal/slots/keeper"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "internal/redistest", ours: []string{"internal/redistest/proctest"}},
	{pkg: "internal/redistest/proctest"},
	{pkg: "internal/redisurl", theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "internal/repotest"},
	{pkg: "internal/slots", ours: []string{"internal/fault", "internal/hidden"}},
	{pkg: "internal/slots/keeper", ours: []string{"internal/slots"}},
	{pkg: "internal/within"},
	{pkg: "keyfuncs", ours: []string{"internal/keytext"}},
	{pkg: "limits", ours: []string{"core", "internal/backend", "internal/old/core", "internal/old/limits", "internal/old/limits/yamldoc"}},
	{pkg: "limits/redisdoc", ours: []string{"core", "internal/old/limits", "internal/old/limits/redisdoc", "internal/old/limits/yamldoc", "limits"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "nethttp", ours: []string{"core", "internal/backend", "internal/engine", "internal/problem", "internal/record", "keyfuncs"}},
	{pkg: "outgoing", ours: []string{"core", "internal/backend", "internal/old/core", "keyfuncs"}},
	{pkg: "websocketmw", ours: []string{"core", "internal/backend", "internal/engine", "internal/record", "keyfuncs", "nethttp", "websocketmw/internal/frames"}},
	{pkg: "websocketmw/internal/frames"},
	{pkg: "internal/old/core", ours: []string{"internal/hidden", "internal/old/core/internal/whole", "internal/old/core/step", "internal/old/core/store", "internal/ontrial"}},
	{pkg: "internal/old/core/debug", ours: []string{"internal/old/core", "internal/old/core/stats"}},
	{pkg: "internal/old/core/internal/asking", ours: []string{"internal/old/core/step", "internal/old/core/store"}},
	{pkg: "internal/old/core/internal/remote", ours: []string{"internal/old/core/step", "internal/old/core/store", "internal/within"}},
	{pkg: "internal/old/core/internal/whole"},
	{pkg: "internal/old/core/lease", ours: []string{"internal/old/core/step", "internal/old/core/store"}},
	{pkg: "internal/old/core/memstore", ours: []string{"internal/hidden", "internal/old/core/step", "internal/old/core/store"}},
	{pkg: "internal/old/core/redisstore", ours: []string{"internal/hidden", "internal/old/core/internal/remote", "internal/old/core/memstore", "internal/old/core/step", "internal/old/core/store", "internal/rediskey", "internal/redisurl"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "internal/old/core/stats", ours: []string{"internal/hidden", "internal/old/core/memstore", "internal/old/core/store"}},
	{pkg: "internal/old/core/step", ours: []string{"internal/old/core/internal/whole"}},
	{pkg: "internal/old/core/store", ours: []string{"internal/fault", "internal/hidden", "internal/old/core/step"}},
	{pkg: "internal/old/core/storetest", ours: []string{"internal/old/core", "internal/old/core/internal/asking", "internal/old/core/step", "internal/old/core/store", "internal/old/core/storetest/reference"}},
	{pkg: "internal/old/core/storetest/reference", ours: []string{"internal/old/core/step", "internal/old/core/store"}},
	{pkg: "internal/old/keywatch", ours: []string{"keyfuncs"}},
	{pkg: "internal/old/limits", ours: []string{"internal/fault", "internal/hidden", "internal/old/core", "internal/old/core/store", "internal/old/settle"}},
	{pkg: "internal/old/limits/redisdoc", ours: []string{"internal/old/limits"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "internal/old/limits/yamldoc", ours: []string{"internal/old/limits"}, theirs: []string{"go.yaml.in/yaml/v3"}},
	{pkg: "internal/old/nethttp", ours: []string{"internal/old/core", "internal/ontrial", "internal/problem", "internal/record", "keyfuncs"}},
	{pkg: "internal/old/settle"},
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
	"pgregory.net/rapid",
}

// A package under examples/ may import the packages of ours that users import, and
// what its subject needs: those modules are listed here.
var forExamples = []string{
	"github.com/alicebob/miniredis/v2",
	"github.com/gin-gonic/gin",
	"github.com/gorilla/websocket",
	"github.com/labstack/echo/v4",
	"github.com/redis/go-redis/v9",
	"go.yaml.in/yaml/v3",
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
