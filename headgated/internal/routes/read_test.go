package routes

import (
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
