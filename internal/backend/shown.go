package backend

// Limits are what the page of package stats shows beside the counts, for headgated.
type Limits struct {
	Version  string        `json:"version"` // of the document that they are from
	Err      error         `json:"-"`       // why a newer document is not in force
	Policies []ShownPolicy `json:"policies"`
}

// A ShownPolicy is a policy of a limiter.
type ShownPolicy struct {
	Limiter string `json:"limiter"`
	Name    string `json:"name"`
	Text    string `json:"policy"`
}
