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
	{pkg: "adapter", ours: []string{"keyfuncs", "nethttp", "internal/carried", "internal/keytext"}},
	{pkg: "core/internal/whole"},
	{pkg: "core/step", ours: []string{"core/internal/whole"}},
	{pkg: "core/store", ours: []string{"core/step", "internal/hidden"}},
	{pkg: "core", ours: []string{"core/internal/whole", "core/step", "core/store", "internal/hidden", "internal/ontrial"}},
	{pkg: "core/lease", ours: []string{"core/step", "core/store"}},
	{pkg: "core/memstore", ours: []string{"core/step", "core/store", "internal/hidden"}},
	{
		pkg:    "core/redisstore",
		ours:   []string{"core/internal/keeper", "core/internal/remote", "core/memstore", "core/step", "core/store", "internal/hidden", "internal/redisurl"},
		theirs: []string{"github.com/redis/go-redis/v9"},
	},
	{pkg: "core/stats", ours: []string{"core/memstore", "core/store", "internal/hidden"}},
	{pkg: "core/debug", ours: []string{"core", "core/stats"}},
	{pkg: "core/internal/keeper"},
	{pkg: "core/internal/asking", ours: []string{"core/step", "core/store"}},
	{pkg: "core/internal/remote", ours: []string{"core/internal/keeper", "core/step", "core/store", "internal/within"}},
	{pkg: "core/storetest", ours: []string{"core", "core/internal/asking", "core/storetest/reference", "core/step", "core/store"}},
	{pkg: "core/storetest/reference", ours: []string{"core/step", "core/store"}},
	{pkg: "internal/carried"},
	{pkg: "internal/keytext"},
	{pkg: "internal/keywatch", ours: []string{"keyfuncs"}},
	{pkg: "keyfuncs", ours: []string{"internal/carried", "internal/keytext"}},
	{pkg: "internal/settle"},
	{pkg: "limits", ours: []string{"core", "core/store", "internal/fault", "internal/hidden", "internal/settle"}},
	{pkg: "limits/redisdoc", ours: []string{"limits"}, theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "limits/yamldoc", ours: []string{"limits"}, theirs: []string{"go.yaml.in/yaml/v3"}},
	{pkg: "nethttp", ours: []string{"core", "core/memstore", "internal/carried", "internal/holds", "internal/problem", "keyfuncs", "limits", "internal/fault", "internal/keywatch", "internal/record", "internal/ontrial"}},
	{pkg: "ginmw", ours: []string{"adapter", "keyfuncs", "nethttp"}, theirs: []string{"github.com/gin-gonic/gin"}},
	{pkg: "echomw", ours: []string{"adapter", "keyfuncs", "nethttp"}, theirs: []string{"github.com/labstack/echo/v4"}},
	{pkg: "internal/holds", ours: []string{"core"}},
	{
		pkg: "websocketmw", ours: []string{
			"core", "core/memstore", "core/store", "internal/carried", "internal/hidden", "internal/holds", "internal/record", "keyfuncs", "limits", "nethttp",
			"websocketmw/internal/conn", "websocketmw/internal/fleet", "websocketmw/internal/frames",
		},
	},
	{pkg: "websocketmw/internal/conn", ours: []string{"core", "internal/hidden", "internal/ontrial", "internal/record", "websocketmw/internal/frames"}},
	{pkg: "websocketmw/internal/fleet", ours: []string{"core", "core/store", "internal/hidden"}},
	{pkg: "websocketmw/internal/frames"},
	{pkg: "websocketmw/gorillaws", ours: []string{"websocketmw"}, theirs: []string{"github.com/gorilla/websocket"}},
	{
		pkg:    "cmd/headgate",
		ours:   []string{"core", "core/memstore", "core/redisstore", "internal/redisurl", "limits", "limits/redisdoc", "limits/yamldoc"},
		theirs: []string{"github.com/redis/go-redis/v9"},
	},
	{pkg: "internal/bubble"},
	{pkg: "internal/guardtest", ours: []string{"core", "core/memstore", "keyfuncs", "nethttp", "websocketmw"}},
	{
		pkg:    "internal/exampletest",
		ours:   []string{"core/redisstore", "internal/redistest", "internal/redistest/proctest", "keyfuncs", "websocketmw"},
		theirs: []string{"github.com/gorilla/websocket"},
	},
	{pkg: "internal/fault"},
	{pkg: "internal/hidden"},
	{pkg: "internal/problem"},
	{pkg: "internal/pictures"},
	{pkg: "internal/record"},
	{pkg: "internal/redistest", ours: []string{"internal/redistest/proctest"}},
	{pkg: "internal/redistest/proctest"},
	{pkg: "internal/redisurl", theirs: []string{"github.com/redis/go-redis/v9"}},
	{pkg: "internal/repotest"},
	{pkg: "internal/within"},
	{pkg: "internal/ontrial"},
}

// forTests are the modules that only tests may import.
var forTests = []string{
	"github.com/alicebob/miniredis/v2",
	"github.com/gin-gonic/gin",
	"github.com/gorilla/websocket",
	"github.com/labstack/echo/v4",
	"github.com/dunglas/httpsfv", // a parser of structured fields that is not ours
	"github.com/redis/go-redis/v9",
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
