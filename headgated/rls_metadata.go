package headgated

import (
	"math"
	"strconv"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/internal/old/limits"
)

// metadata reads what a rule tells Envoy of itself: any map.
func (r *rulesReader) metadata(n *limits.Node, path string) map[string]any {
	switch {
	case n == nil || n.Kind == limits.Null:
		return nil
	case n.Kind != limits.Map:
		r.fault(n, path, "it is %v, not a map", n.Kind)
		return nil
	}
	all := make(map[string]any)
	for i := range n.Keys {
		name := n.Keys[i].Text
		if _, there := all[name]; there {
			r.fault(&n.Keys[i], path, "a key is there twice")
		}
		all[name] = r.value(&n.Values[i], path)
	}
	return all
}

// value reads a value as package structpb has it.
func (r *rulesReader) value(n *limits.Node, path string) any {
	switch n.Kind {
	case limits.Null:
		return nil
	case limits.Bool:
		b, err := strconv.ParseBool(n.Text)
		if err != nil {
			r.fault(n, path, "it is true in some YAML, and a text in other: quote it")
		}
		return b
	case limits.Number:
		f, err := strconv.ParseFloat(n.Text, 64)
		if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			r.fault(n, path, "it is no number of JSON: quote it")
		}
		return f
	case limits.List:
		all := make([]any, len(n.Values))
		for i := range n.Values {
			all[i] = r.value(&n.Values[i], path)
		}
		return all
	case limits.Map:
		return r.metadata(n, path)
	}
	return n.Text
}

// dynamicMetadata returns what Envoy's filters and logs learn of a request, as the reference tells it: the
// descriptors, and the metadata of the limits that it has passed.
func dynamicMetadata(q *pb.RateLimitRequest, items []item) *structpb.Struct {
	descriptors := make([]any, len(items))
	passed := make(map[string]any)
	for i, d := range q.GetDescriptors() {
		entries := make([]any, len(d.GetEntries()))
		for j, e := range d.GetEntries() {
			entries[j] = e.GetKey() + "=" + e.GetValue()
		}
		one := map[string]any{"entries": entries}
		if own := d.GetHitsAddend(); own != nil {
			one["hitsAddend"] = own.GetValue()
		}
		descriptors[i] = one
		if it := &items[i]; it.limiter != nil && it.status.GetCode() == pb.RateLimitResponse_OK {
			merge(passed, it.metadata)
		}
	}
	all := map[string]any{"domain": q.GetDomain(), wordDescriptors: descriptors}
	if n := q.GetHitsAddend(); n > 0 {
		all["hitsAddend"] = n
	}
	if len(passed) > 0 {
		all[wordMetadata] = passed
	}
	m, _ := structpb.NewStruct(all) // there is nothing else in it than structpb takes
	return m
}

// merge adds what is not there yet. Of what is there, maps get what they lack.
func merge(into, from map[string]any) {
	for name, value := range from {
		before, there := into[name]
		inner, isMap := value.(map[string]any)
		switch both, wasMap := before.(map[string]any); {
		case isMap && !there:
			fresh := make(map[string]any)
			merge(fresh, inner)
			into[name] = fresh
		case isMap && wasMap:
			merge(both, inner)
		case !there:
			into[name] = value
		}
	}
}
