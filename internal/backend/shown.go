package backend

import "github.com/headgate/headgate/internal/step"

// Limits are what the page of package stats shows beside the counts, for headgated.
type Limits struct {
	Version  string // of the document that they are from
	Err      error  // why a newer document is not in force
	Limiters []NamedPolicies
}

// NamedPolicies are policies of a limiter.
type NamedPolicies struct {
	Name     string
	Policies []step.Policy
}
