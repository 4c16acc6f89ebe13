// Package limits keeps rate limits and quotas in a document instead of in Go source. The document
// has plans, and overrides for some customers. It can change while the servers run. Used units stay
// used.
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
//	limits       by name: plans, default, overrides
//	slots        by name: plans, default, overrides
//	plans        by name: a policy, or several by their names. Of slots, a number
//	default      the plan for requests of none; needed if there are several. Of slots, it
//	             is otherwise the smallest
//	overrides    a list; each is for one key or prefix, and has a plan, or policies, or
//	             both. Of slots, it has a plan or slots
//
// A policy is the text that [core.Policy.UnmarshalText] describes. Each limit also has the plans
// unlimited and blocked.
//
// An unknown field is a fault. A policy named mintue is another policy, but a field of that name is an
// error. A name that is there twice is a fault, and so is a number, a date or a boolean in the place
// of a string. All faults are reported at once, with their lines and columns ([Faults]).
//
// # Overrides
//
// If several overrides match a key, only one applies. An override for the key goes first, then
// the one with the longest prefix. Its plan applies instead of the plan of the request.
// Its policies replace the policies of the plan with the same names, and the others stay. If the plan
// is blocked or unlimited, they apply instead of it. A policy unlimited takes away the policy of its
// name; without a name, it takes all away. With a date, an override applies from the one and until
// before the other, by the clock of the server.
//
// Each key with the prefix has a count of its own. Use prefixes for keys that clients cannot choose;
// otherwise a client chooses its limit. A key has the form in which it is charged: package keyfuncs
// says which.
//
// [Book.Unmatched] tells which overrides have
// matched no key.
//
// # Changes
//
// A document applies as a whole or not at all. If it has a fault, or the source is away, the limits
// stay as they are, and [Book.State] says why. An empty list of overrides removes them; a missing or
// empty file does not.
//
// Limiters of policies that have not changed are the same as before. A policy that keeps its name and
// algorithm keeps its usage, by the rules of [core.Limiter.With]. Sometimes usage cannot be kept, for a
// plan or for an override over one. Then [Compare] says that it is lost, and the document is refused,
// unless [Config].Accept takes it.
//
// A document may raise a limit, a burst or a number of slots above the present usage. That admits at
// once, on every server that has the document. A higher rate of a token bucket does not, because usage
// is converted from the old parameters. A policy that counts refusals does not either. Servers do not
// change at the same instant. While some have the old parameters and some the new, no more is admitted
// than by the larger. If the periods differ, it is the sum of both at most.
//
// To go back, apply the old document.
//
// # Consistency
//
// A decision is made by one document, and so are all rules of a guard. Two guards of one
// request may have two.
package limits
