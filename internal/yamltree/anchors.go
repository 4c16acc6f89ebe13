package yamltree

import (
	"slices"

	"go.yaml.in/yaml/v4"
)

// expand puts what aliases stand for in their place, each with the place where it is written, and what maps are merged
// with into these maps. What is there already stays. A text in which that has too many values is at fault.
func (r *Reader) expand(n *yaml.Node) {
	left := maxValues
	r.expandWithin(n, 0, &left)
	if left < 0 {
		r.Fault(n, "with what its aliases stand for, the document has more than %d values", maxValues)
	}
}

// expandWithin expands a node that is so deep in others. What is deeper than documents may be is cut off, also if it
// has itself in it.
func (r *Reader) expandWithin(n *yaml.Node, depth int, left *int) {
	*left--
	if *left < 0 || depth > maxDepth {
		n.Kind = yaml.ScalarNode
		n.Content = nil
		return
	}
	if n.Kind == yaml.AliasNode {
		// The copy is of the node as it is written, so an alias in it is expanded in its turn.
		*n = *n.Alias
	}
	n.Anchor = ""
	n.Content = slices.Clone(n.Content)
	for i, inner := range n.Content {
		one := *inner
		n.Content[i] = &one
		r.expandWithin(&one, depth+1, left)
	}
	if n.Kind == yaml.MappingNode {
		r.merge(n)
	}
}

// merge adds to a map what stands under its merge keys.
func (r *Reader) merge(n *yaml.Node) {
	var own, merged []*yaml.Node
	has := make(map[string]bool) // keys
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.Value != "<<" || key.Style != 0 || key.Kind != yaml.ScalarNode:
			own = append(own, key, value)
			has[key.Value] = true
		case value.Kind == yaml.SequenceNode:
			merged = append(merged, value.Content...)
		default:
			merged = append(merged, value)
		}
	}
	for _, from := range merged {
		if from.Kind != yaml.MappingNode {
			r.Fault(from, "what is merged is a map, or a list of maps")
			continue
		}
		for i := 0; i+1 < len(from.Content); i += 2 {
			key := from.Content[i]
			if !has[key.Value] {
				own = append(own, key, from.Content[i+1])
				has[key.Value] = true
			}
		}
	}
	n.Content = own
}
