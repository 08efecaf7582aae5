"""The fixed shop a user meets with ``agent run shop``; nothing in it occurs in the training data."""

from __future__ import annotations

from .world import Customer, Order, Policy, Product, Shipment, World

DEMO_WORLD = World(
    customers=(
        Customer("C-478", "Marta Haas", "marta.haas@example.org", "gold"),
        Customer("C-365", "Omar Petrov", "omar.petrov@example.com", "basic"),
        Customer("C-834", "Ingrid Dubois", "ingrid@example.net", "silver"),
        Customer("C-662", "Pablo Okafor", "p.okafor@example.org", "basic"),
        Customer("C-587", "Nina Berg", "nina_berg@example.com", "gold"),
    ),
    products=(
        Product("P-831", "Aurora lamp", 45, 4, 4.3),
        Product("P-907", "Nimbus lamp", 29, 0, 3.9),
        Product("P-920", "Lumen lamp", 38, 6, 4.7),
        Product("P-474", "Pixel camera", 189, 2, 4.1),
        Product("P-199", "Fjord tent", 120, 3, 4.5),
        Product("P-546", "Willow tent", 95, 0, 3.8),
        Product("P-798", "Cobalt kettle", 34, 7, 4.4),
        Product("P-976", "Meridian kettle", 52, 0, 4.6),
        Product("P-830", "Kestrel backpack", 68, 5, 4.2),
        Product("P-951", "Quill keyboard", 77, 1, 4.1),
        Product("P-391", "Raven headset", 59, 8, 3.6),
        Product("P-190", "Wren mug", 12, 9, 4.8),
    ),
    orders=(
        Order("O-7327", "C-478", "P-831", "Aurora lamp", 45, "03-14", "delivered", "T-5006"),
        Order("O-8167", "C-478", "P-798", "Cobalt kettle", 34, "07-02", "delivered", "T-1808"),
        Order("O-7802", "C-478", "P-830", "Kestrel backpack", 68, "09-21", "shipped", "T-2979"),
        Order("O-7048", "C-365", "P-920", "Lumen lamp", 38, "06-11", "delivered", "T-5913"),
        Order("O-5114", "C-365", "P-831", "Aurora lamp", 45, "10-05", "shipped", "T-2861"),
        Order("O-3153", "C-834", "P-951", "Quill keyboard", 77, "10-19", "processing", None),
        Order("O-6079", "C-834", "P-190", "Wren mug", 12, "10-20", "processing", None),
        Order("O-4070", "C-834", "P-199", "Fjord tent", 120, "08-08", "delivered", "T-6764"),
        Order("O-2589", "C-662", "P-199", "Fjord tent", 120, "08-30", "delivered", "T-2953"),
        Order("O-6468", "C-662", "P-190", "Wren mug", 24, "10-25", "packed", None),
        Order("O-3773", "C-587", "P-474", "Pixel camera", 189, "05-17", "delivered", "T-1122"),
        Order("O-4126", "C-587", "P-391", "Raven headset", 59, "09-09", "delivered", "T-7558"),
        Order("O-4007", "C-587", "P-798", "Cobalt kettle", 34, "11-02", "processing", None),
    ),
    shipments=(
        Shipment("T-5006", "delivered", "Lyon", "03-18"),
        Shipment("T-1808", "delivered", "Lyon", "07-06"),
        Shipment("T-2979", "in transit", "Turin", "09-27"),
        Shipment("T-5913", "delivered", "Graz", "06-15"),
        Shipment("T-2861", "out for delivery", "Graz", "10-09"),
        Shipment("T-6764", "delivered", "Ghent", "08-12"),
        Shipment("T-2953", "delivered", "Porto", "09-03"),
        Shipment("T-1122", "delivered", "Bergen", "05-22"),
        Shipment("T-7558", "delivered", "Bergen", "09-13"),
    ),
    policy=Policy(refund_from="05-01", cancel_statuses=("processing",), shipping_fee=5, shipping_free_from=60),
    next_order=8639,
)
