; The machine of spec/semantics.md, as functions. Every script that the verifier gives to a solver
; begins with this text. What follows it is data (which step names which aNode, of which kind, of
; how many bytes) and applications of these functions; outcomes are the solver's.
;
; X.ok is the guard of X, a rule of the machine: what must hold of one aNode before a step.
; X.fact is the effect of X on one fact of one aNode. A fact of an aNode that a step does not
; name stays as it is (spec/lemmas/frame.smt2). Codes are those of spec/verification.md.

; Kinds of aNodes, and what is the caller's.
(define-fun kind.input () Int 0)
(define-fun kind.param () Int 1)
(define-fun kind.buffer () Int 2)
(define-fun kind.const () Int 3)
(define-fun kind.opt_state () Int 4)
(define-fun kind.param_grad () Int 5)
(define-fun kind.tangent () Int 6)
(define-fun kind.act () Int 7)
(define-fun kind.phantom () Int 8)
(define-fun kind.grad () Int 9)
(define-fun kind.output () Int 10)
(define-fun kind.pending () Int 11)
(define-fun kind.rng () Int 12)
; Of the caller's storage that is on the host between two steps, and of gradients that end there,
; in place of the kind that they are declared with.
(define-fun kind.home () Int (- 1))
(define-fun kind.home_grad () Int (- 2))
; Of what an update ends, on the device and on the host, and of what goes on under its storage.
(define-fun kind.old () Int (- 3))
(define-fun kind.old_home () Int (- 4))
(define-fun kind.updated () Int (- 5))
(define-fun caller ((kind Int)) Bool (<= 0 kind 4))
(define-fun own ((kind Int)) Bool (or (caller kind) (= kind kind.old)))
(define-fun activation ((kind Int)) Bool (<= 6 kind))

; Arithmetic of sizes; divisors are positive.
(define-fun floordiv ((x Int) (n Int)) Int (div x n))
(define-fun ceildiv ((x Int) (n Int)) Int (- (div (- x) n)))
(define-fun roundup ((x Int) (n Int)) Int (* n (ceildiv x n)))
(define-fun later ((x Int) (y Int)) Int (ite (>= x y) x y))

; At first the caller's storage is alive, or on the host. Nothing is in flight, or done: facts that
; no step has changed are written `false`.
(define-fun start.alive ((kind Int)) Bool (own kind))
(define-fun start.hosted ((kind Int)) Bool (or (= kind kind.home) (= kind kind.old_home)))

; A computation: what it reads (FB0803 to FB0806, FB0814, FB0850), a buffer among it (FB0807), what it
; makes (FB0851), and the phantoms that `nosave` drops.
(define-fun read.ok ((alive Bool) (arriving Bool)) Bool (and alive (not arriving)))
(define-fun buffer.ok ((done Bool) (loss Bool)) Bool (or loss (not done)))
(define-fun make.ok ((flying Bool)) Bool (not flying))
(define-fun make.alive ((kind Int) (nosave Bool)) Bool
  (or (caller kind) (not (and nosave (= kind kind.phantom)))))

; An accumulation, or an update, ends one name of a storage (FB0809, FB0851) and gives it another
; (FB0810, FB0851).
(define-fun end.ok ((kind Int) (flying Bool)) Bool (and (not (caller kind)) (not flying)))
(define-fun end.alive () Bool false)
(define-fun end.aged () Bool true)
(define-fun become.ok ((alive Bool) (flying Bool)) Bool (and (not alive) (not flying)))
(define-fun become.alive () Bool true)

; An update on the host reads copies there (FB0851 to FB0853), of which some end (FB0809, FB0854) and go on
; under another name (FB0810, FB0855); what it reads and makes is in flight.
(define-fun look.ok ((hosted Bool) (aged Bool) (flying Bool)) Bool
  (and hosted (not aged) (not flying)))
(define-fun look.flying () Bool true)
(define-fun old.ok ((kind Int) (alive Bool)) Bool (and (= kind kind.old_home) (not alive)))
(define-fun old.hosted () Bool false)
(define-fun new.ok ((alive Bool) (flying Bool) (hosted Bool)) Bool
  (and (not alive) (not flying) (not hosted)))
(define-fun new.hosted () Bool true)
(define-fun new.aged () Bool false)
(define-fun new.flying () Bool true)

; The loss runs once (FB0811); random operators first run in the order of the model (FB0815): `earlier`
; is whether the one before has run. Runs: whether a cNode has run once, and twice.
(define-fun loss.ok ((done Bool)) Bool (not done))
(define-fun loss.done () Bool true)
(define-fun order.ok ((drawn Bool) (earlier Bool)) Bool (or drawn earlier))
(define-fun run.ran () Bool true)
(define-fun run.twice ((ran Bool)) Bool ran)
(define-fun form.ok ((ran Bool) (again Bool)) Bool (= ran again))
(define-fun token.ok ((twice Bool) (made Bool)) Bool (= twice made))

; free (FB0808, FB0809, FB0851).
(define-fun free.ok ((alive Bool) (kind Int) (flying Bool) (result Bool) (done Bool)) Bool
  (and alive (not (own kind)) (not flying) (not (and result done))))
(define-fun free.alive ((alive Bool) (kind Int)) Bool (and alive (own kind)))

; offload (FB0803 to FB0805, FB0851, FB0855, FB0859).
(define-fun offload.ok ((alive Bool) (kind Int) (flying Bool) (hosted Bool)) Bool
  (and alive (not (own kind)) (not flying) (not hosted)))
(define-fun offload.flying () Bool true)
(define-fun offload.hosted () Bool true)
(define-fun offload.aged () Bool false)

; prefetch (FB0851 to FB0854).
(define-fun prefetch.ok ((alive Bool) (flying Bool) (hosted Bool) (aged Bool)) Bool
  (and hosted (not aged) (not alive) (not flying)))
(define-fun prefetch.alive () Bool true)
(define-fun prefetch.flying () Bool true)
(define-fun prefetch.arriving () Bool true)

; wait (FB0856) and hostfree (FB0851, FB0852, FB0859).
(define-fun wait.ok ((flying Bool)) Bool flying)
(define-fun wait.flying () Bool false)
(define-fun wait.arriving () Bool false)
(define-fun hostfree.ok ((flying Bool) (hosted Bool) (kind Int) (aged Bool)) Bool
  (and hosted (not flying) (not (= kind kind.home)) (or (not (= kind kind.old_home)) aged)))
(define-fun hostfree.hosted () Bool false)
(define-fun hostfree.aged () Bool false)

; The end (FB0811 to FB0813, FB0816, FB0819, FB0857, FB0858): `kept` is what the caller wants on the
; device. What has its home on the host is there, and not stale.
(define-fun finish.ok ((kept Bool) (alive Bool) (kind Int) (flying Bool) (hosted Bool) (aged Bool)) Bool
  (and (not flying) (= hosted (or (= kind kind.home) (= kind kind.home_grad)))
       (not (and hosted aged)) (= alive (or kept (caller kind)))))
(define-fun finish.loss ((done Bool)) Bool done)
(define-fun finish.drawn ((drawn Bool)) Bool drawn)

; Bytes: a sum counts what is there, so it changes with what is there. Activation bytes leave out
; what is the caller's and the gradients of parameters.
(define-fun counts ((there Bool) (size Int)) Int (ite there size 0))
(define-fun change ((before Bool) (after Bool) (size Int)) Int
  (- (counts after size) (counts before size)))
(define-fun act.size ((kind Int) (size Int)) Int (ite (activation kind) size 0))

; Time, in nanoseconds: `again` is whether the replay form runs.
(define-fun run.now ((now Int) (again Bool) (first Int) (replay Int)) Int
  (+ now (ite again replay first)))
(define-fun issue.now ((now Int) (issue Int)) Int (+ now issue))
(define-fun copy.end ((now Int) (busy Int) (takes Int)) Int (+ (later now busy) takes))
(define-fun copy.takes ((size Int) (rate Int)) Int
  (ite (= rate 0) 0 (ceildiv (* size 1000000000) rate)))
(define-fun wait.now ((now Int) (end Int)) Int (later now end))
(define-fun host.end ((now Int) (busy Int) (takes Int)) Int (+ (later now busy) takes))

; Streams: an event has, per direction, the number of the last copy that has surely ended (a clock);
; so it has of updates on the host (cpu), which read and write bytes there.
; Of the bytes of an aNode are known the numbers of the last copies that use them, 0 if none:
; an offload (d2h) reads those on the device and writes those on the host, a prefetch (h2d) the
; other way round. FB0860 to FB0862.
(define-fun copy.number ((last Int)) Int (+ last 1))
(define-fun device.read.ok ((h2d Int) (written Int)) Bool (>= h2d written))
(define-fun device.write.ok ((d2h Int) (h2d Int) (read Int) (written Int)) Bool
  (and (>= d2h read) (>= h2d written)))
(define-fun host.read.ok ((d2h Int) (cpu Int) (written Int) (updated Int)) Bool
  (and (>= d2h written) (>= cpu updated)))
(define-fun host.write.ok ((d2h Int) (h2d Int) (cpu Int) (written Int) (read Int) (used Int)) Bool
  (and (>= d2h written) (>= h2d read) (>= cpu used)))
