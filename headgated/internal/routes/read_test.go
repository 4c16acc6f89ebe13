package routes

import (
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/yamltree"
)

// A route with several faults has all of them, and reading it ends.
func TestFaultsOfOneRoute(t *testing.T) {
	reader := &yamltree.Reader{Unended: true}
	root := reader.Load([]byte("routes: [{host: []}]\n"))
	Read(reader, nil, reader.Fields(root, "the document", "routes")["routes"])
	if len(reader.Faults) != 2 {
		t.Errorf("faults: %v", reader.Faults)
	}
}

// A route is said to be reached by no request if, and only if, that is so: of all requests that tell small tables apart.
func TestReached(t *testing.T) {
	hosts := []string{"a.example", "b.example", "other.example"}
	methods := []string{"GET", "HEAD", "POST", "PUT"}
	var paths []string
	for below := []string{""}; len(below) < 500; {
		paths = append(paths, below...)
		var next []string
		for _, path := range below {
			next = append(next, path+"/a", path+"/b", path+"/other")
		}
		below = next
	}
	random := rand.New(rand.NewPCG(1, 2))
	some := func(field string, all []string) string { // a random list of some of them
		var chosen []string
		for _, text := range all {
			if random.IntN(2) == 0 {
				chosen = append(chosen, text)
			}
		}
		if len(chosen) == 0 || random.IntN(3) == 0 {
			return ""
		}
		return field + ": [" + strings.Join(chosen, ", ") + "], "
	}
	patterns := []string{"/", "/a", "/{x}", "/{x...}", "/a/b", "/a/{x}", "/{x}/{y}", "/a/{x...}", "/{x}/{y...}", "/{x}/a/{y...}", "/{x}/{y}/{z...}"}
	unreached := 0
	for range 1000 {
		text := "routes:\n"
		for range 2 + random.IntN(6) {
			path := "path: '" + patterns[random.IntN(len(patterns))] + "', "
			if random.IntN(4) == 0 {
				path = ""
			}
			text += "- {" + some("host", hosts[:2]) + some("method", methods[:3]) + path + "charge: []}\n"
		}
		reader := &yamltree.Reader{Unended: true}
		root := reader.Load([]byte(text))
		table := Read(reader, nil, reader.Fields(root, "the document", "routes")["routes"])
		reached := make(map[int]bool)
		for _, host := range hosts {
			for _, method := range methods {
				for _, path := range paths {
					r := &http.Request{Host: host, Method: method, URL: &url.URL{Path: "/" + strings.TrimPrefix(path, "/")}}
					for _, met := range table.Find(r, nil) {
						reached[slices.Index(table.Routes, met.Route)] = true
					}
				}
			}
		}
		said := make(map[int]bool)
		for _, fault := range reader.Faults {
			said[fault.Line-2] = true
		}
		for i := range table.Routes {
			if !reached[i] {
				unreached++
			}
			if reached[i] == said[i] {
				t.Fatalf("routes[%d] is reached: %t, and has a fault: %t\n%s", i, reached[i], said[i], text)
			}
		}
	}
	t.Log(unreached, "routes that no request reaches")
}
