"""How customers say things. Each pool has phrasings for the training and, apart from them, held-out ones.

Held-out phrasings are other sentences made of mostly the same words: a model trained from scratch on this
shop has no way to know a word it never met. Words for rules and actions (`RULES`, `ACTS`, ...) are a lexicon
shared by both.
"""

from __future__ import annotations

from .customer_phrases import CUSTOMER_PHRASES
from .grammar import Pool
from .order_phrases import ORDER_PHRASES
from .product_phrases import PRODUCT_PHRASES
from .small_talk_phrases import SMALL_TALK_PHRASES


def _lexicon(*words: str) -> Pool:
    return Pool(words, words)


RULES = {
    "latest": _lexicon("latest", "newest", "most recent", "last"),
    "oldest": _lexicon("oldest", "earliest", "first"),
    "cheapest": _lexicon("cheapest", "least expensive", "lowest priced"),
    "dearest": _lexicon("most expensive", "priciest", "highest priced"),
}
COMPARATIVES = {
    "latest": _lexicon("later", "newer", "more recent"),
    "oldest": _lexicon("older", "earlier"),
    "cheapest": _lexicon("cheaper", "less expensive"),
    "dearest": _lexicon("more expensive", "pricier"),
}
ACTS = {
    "refund": _lexicon("refund", "pay back", "give me a refund for", "give me my money back for"),
    "cancel": _lexicon("cancel", "call off", "stop"),
}
WANTS = {
    "refund": _lexicon("a refund for", "a refund of", "my money back for"),
    "cancel": _lexicon("a cancellation of", "the cancellation of"),
}

OPENING = Pool(
    (
        "(Hello|Hi|Hey)(| there|, support)(.|!|,)",
        "Good (morning|afternoon|evening|day)(.|!|,)",
        "(Dear|Hello) (support|team|shop)(,|.)",
        "(Sorry to bother you|Excuse me|Pardon me)(,|.)",
        "I (have|'ve got) a (question|request)(.|:)",
        "(Quick|Short) (question|request|one)(.|:)",
        "(Can|Could) you help me(, please|)?",
        "I need (some|your) help( please|).",
        "I am (a bit|) in a hurry.",
    ),
    (
        "Hello, I need help(.| please.)",
        "(Hi|Good day), (quick question|a short request).",
        "(Hey|Dear) support team, (can you help|excuse me).",
    ),
)
CLOSING = Pool(
    (
        "(Thanks|Thank you|Many thanks)(.|!| a lot.| so much.| in advance.)",
        "(Thanks|Thank you) for your help.",
        "(Best|Kind) (regards|wishes).",
        "I (hope|trust) that is (fine|okay).",
        "(Have a nice day|Cheers|All the best)(.|!)",
        "I (look forward to|wait for) your answer.",
        "That is all.",
        "(It is|This is) (rather |quite |)urgent.",
    ),
    (
        "Thank you, have a nice day.",
        "(Many thanks and|Cheers and) kind regards.",
        "That is all, thanks for your help.",
    ),
)
REMARK = Pool(
    (
        "I have been a customer for (2|3|4|5|two|three|many) years.",
        "It (was|is) a (gift|present) for my (sister|brother|mother|father|friend|wife|husband|son|daughter).",
        "I live in (Lyon|Porto|Turin|Ghent|Bergen|a small town|the country).",
        "My (friend|sister|colleague) (recommended|told me about) your shop.",
        "I (tried|called) (twice|before) but (nobody answered|it did not work).",
        "I am (leaving|travelling|moving) (soon|tomorrow|next week).",
        "The (weather|traffic) is (awful|bad|terrible) (today|here).",
        "I (like|love) your (shop|website)(.|, by the way.|!)",
        "I (do not|don't) (understand|know) how (this|your website) works.",
        "This is my (first|second) (message|time) (here|with you).",
        "(We|I) (need|want) to (settle|solve) this (today|soon|quickly).",
        "I am writing (from my phone|for my company|on my way to work).",
    ),
    (
        "I love your shop, my sister told me about it.",
        "Sorry, I am travelling next week and in a hurry.",
        "We have been here before, for three years.",
    ),
)
IDENTITY = Pool(
    (
        "My (email|e-mail|mail|email address) is {email}.",
        "I am {name}, {email}.",
        "(The|My) account is {email}.",
        "I (am registered|signed up|shop) (as|with|under) {email}.",
        "(Email|E-mail|Account|My email): {email}.",
        "You (can find|find|know) me (under|as) {email}.",
        "This is {name} with the (email|address) {email}.",
        "(I use|I always use) {email} (here|for my account|in your shop).",
        "My name is {name} and my (email|address) is {email}.",
        "The (email|mail) of my account is {email}.",
        "(Here is|This is) my email: {email}",
        "I (wrote|write) from {email}.",
    ),
    (
        "I am registered here, my email is {email}.",
        "This is {name}, my account is {email}.",
        "You can find my account with {email}.",
    ),
)
CONFIRMED = Pool(
    (
        "(Yes|Yes please|Please), go ahead.",
        "I (hereby |)confirm (it|this|that).",
        "(I confirm|I have confirmed)(, so|,|, you can) go ahead.",
        "(This|That|It) is confirmed.",
        "(You can|You may|Please) (just |)do it (right away|now|at once).",
        "(I am sure|I'm sure|I am certain)(.|, do it.|, go ahead.)",
        "No need to ask (me |)(again|back|first).",
        "(Consider|Take) this (as |)my confirmation.",
        "(Go ahead|Do it) without asking( me| again|).",
        "(I have decided|My mind is made up)(.|, do it.|, go ahead.)",
        "Confirmed(.|!|, go ahead.|, do it.)",
        "You have my (okay|confirmation|permission).",
        "Yes, I (want|mean) (it|this)(, really|)(.|, do it.)",
    ),
    (
        "I am sure, this is my confirmation.",
        "(Yes|Please), do it without asking again.",
        "I confirm, no need to ask.",
        "You may go ahead, I have decided.",
    ),
)
UNDECIDED = Pool(
    (
        "(Ask|Check with) me (first|before you do it|before anything happens).",
        "(Do not|Don't) do (it|anything) yet.",
        "I (have not|haven't) decided yet.",
        "(Tell|Show) me first what (it would be|would happen).",
        "I will confirm (later|afterwards|when I see it).",
        "(Wait|Please wait) for my (okay|confirmation) (first|before you do it).",
        "I (may|might) change my mind.",
        "What would (that|it) be(, exactly|)?",
        "I want to see (it|the details) (first|before I confirm).",
    ),
    (
        "Wait, I have not decided, ask me first.",
        "Show me the details before you do anything.",
        "I will confirm it when you ask me.",
    ),
)

BODIES = ORDER_PHRASES | CUSTOMER_PHRASES | PRODUCT_PHRASES | SMALL_TALK_PHRASES
"""What is asked for, by task kind."""
