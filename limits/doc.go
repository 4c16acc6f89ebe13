// Package limits keeps limits in a document instead of in Go source: plans, the customers who
// have other limits than their plan, and limits on trial. The document is changed while the
// servers run. What was used stays used.
//
//	{
//	  "limits": {
//	    "api": {
//	      "default": "free",
//	      "plans": {
//	        "free": {"minute": "sliding-log 60/minute", "day": "fixed-window 1000/day"},
//	        "gold": {"minute": "sliding-log 600/minute", "day": "fixed-window 50000/day"}
//	      },
//	      "overrides": [
//	        {"key": "user-42", "plan": "gold", "until": "2030-12-01T00:00:00Z", "note": "ticket 815"},
//	        {"prefix": "acme:", "policies": {"minute": "sliding-log 6000/minute"}}
//	      ]
//	    }
//	  }
//	}
//
// A program opens the document as a [Book], and asks it for limiters:
//
//	book, err := limits.Open(ctx, store, nil, limits.File("limits.json"), limits.Config{})
//	...
//	api, err := book.Limit("api")
//	...
//	decision, err := api.For("gold", "user-42").Allow(ctx, "user-42")
//
// The rules of packages nethttp and websocketmw take a [Limit], and [Slots], in the place of a
// limiter.
//
// # The document
//
// Package yamldoc has the same in YAML. A file with a JSON Schema, limits.schema.json, is
// beside this one.
//
//	limits       by name: plans, default, overrides, shadow
//	slots        by name: plans, default, overrides
//	plans        by name: a policy, or several by their names. Of slots, a number
//	default      the plan for requests of none; needed if there are several. Of slots, it
//	             is otherwise the smallest
//	overrides    a list; each is for one key, prefix or hash, and has a plan, or policies, or
//	             both. Of slots, it has a plan or slots
//	shadow       policies that are decided and counted, and refuse nothing
//
// A policy is the text that [core.Policy.UnmarshalText] describes. Each limit also has the plans
// unlimited and blocked.
//
// What is not known is a fault: a policy named mintue is another policy, but a field of that
// name is an error. So are a name that is there twice, and a number, a date or a boolean where a
// string should be. All faults are reported at once, with their lines and columns ([Faults]).
//
// # Overrides
//
// An override applies instead of the plan of the request. Of several that match a key, only one
// does: that of the key, else that of its hash, else that of the longest prefix. Its policies
// take the place of those of the plan that have the same names, and the others stay. With a
// date, it applies from the one and until before the other, by the clock of the server.
//
// Each key that has the prefix has the numbers for itself. Prefixes are for keys that clients
// cannot choose, or a client chooses its limit. A key has the form in which it is charged:
// package keyfuncs says which.
//
// [Hash] is for keys that must not be in a file. [Book.Unmatched] tells which overrides have
// matched no key.
//
// # Changes
//
// A document applies as a whole or not at all. If there is a fault in it, or the source is
// away, the limits stay as they are, and [Book.State] says why. A list of overrides that is
// empty removes them; a file that is missing or empty does not.
//
// Limiters of policies that have not changed are the same as before. Usage is kept for each
// policy that has the same name and algorithm, by the rules of [core.Limiter.With]. Where it
// cannot be, for a plan or for an override over one, [Compare] says that it is lost, and the
// document is refused, unless [Config].Accept takes it.
//
// A limit, burst or number of slots that is raised above what is used admits at once, on every server that has the
// document. That of a token bucket's rate does not, nor do refusals that were counted: what was
// used under the old numbers is converted. Servers do not change at the same instant. While some
// have the old numbers and some the new, no more is admitted than by the larger.
//
// To go back, apply the old document.
//
// # Consistency
//
// A decision is made by one document, and so are all rules of a guard. Two guards of one
// request may have two.
package limits
